//! The EEPROM as drivers read it, and the semaphores that they acquire for that.

use std::sync::Arc;

use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::Window;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;

fn fresh() -> (Arc<Card>, Window) {
    let card = Card::new(&CardConfig::default());
    let window = card.window().unwrap();
    (card, window)
}

fn word(window: &Window, address: u32) -> u16 {
    window.write(EERD, address << 2 | EERD_START);
    (window.read(EERD) >> 16) as u16
}

#[test]
fn the_checksum_holds_with_the_sections_and_without() {
    let (_card, window) = fresh();
    let sum = |range: std::ops::RangeInclusive<u32>| {
        range.fold(0u16, |sum, address| sum.wrapping_add(word(&window, address)))
    };
    let words = sum(0..=0x3f);
    assert_eq!(words, 0xbaba);
    let mut all = words;
    for pointer in (3..=0x0e).map(|address| word(&window, address)).filter(|&pointer| pointer != 0xffff) {
        let length = word(&window, pointer.into());
        all = all.wrapping_add(sum(u32::from(pointer) + 1..=u32::from(pointer + length)));
    }
    assert_eq!(all, 0xbaba);
}

#[test]
fn each_kind_of_module_has_an_entry() {
    let (_card, window) = fresh();
    let mut at = u32::from(word(&window, 0x2b)) + 1;
    let mut kinds = Vec::new();
    while word(&window, at) != 0xffff {
        let sequence = u32::from(word(&window, at + 1));
        assert_eq!(word(&window, sequence + 1), 0xffff, "an empty sequence");
        kinds.push(word(&window, at));
        at += 2;
    }
    assert_eq!(kinds, [3, 4, 5, 6]);
}

#[test]
fn the_firmware_is_new_enough() {
    let (_card, window) = fresh();
    let firmware = u32::from(word(&window, 0x0f));
    assert_eq!(word(&window, firmware + 2), 0xffff, "no LESM");
    let patch = u32::from(word(&window, firmware + 4));
    assert!(word(&window, patch + 7) > 5);
    assert_ne!(window.read(FWSM) & 1 << 15, 0, "valid");
}

/// Clocks bits out, highest first, and returns the last 16 bits that come back.
fn shift(window: &Window, value: u32, bits: u32) -> u16 {
    const REQUEST: u32 = 0x40;
    (0..bits).rev().fold(0, |read, i| {
        let line = REQUEST | (value >> i & 1) << 2;
        window.write(EEC, line);
        window.write(EEC, line | 1);
        let bit = window.read(EEC) >> 3 & 1;
        window.write(EEC, line);
        read << 1 | bit as u16
    })
}

#[test]
fn its_own_bus_reads_the_same() {
    let (_card, window) = fresh();
    assert_eq!(window.read(EEC) & 0x80, 0);
    window.write(EEC, 0x42);
    assert_eq!(window.read(EEC) & 0x80, 0x80, "granted");
    for address in [0u32, 0x09, 0x3f, 0x40, 0x7f, 0x80, 0xff] {
        let command = 0b011 | (address >> 7) << 3;
        window.write(EEC, 0x42);
        shift(&window, 0b101, 8);
        assert_eq!(shift(&window, 0, 8), 0, "ready");
        window.write(EEC, 0x42);
        shift(&window, command, 8);
        shift(&window, (address * 2) & 0xff, 8);
        let read = shift(&window, 0, 16);
        assert_eq!(read.swap_bytes(), word(&window, address), "word {address:#x}");
    }
    window.write(EEC, 0);
    assert_eq!(window.read(EEC) & 0x80, 0, "given back");
}

#[test]
fn a_read_without_start_does_nothing() {
    let (_card, window) = fresh();
    window.write(EERD, 0x09 << 2);
    assert_eq!(window.read(EERD) & EERD_DONE, 0);
}

#[test]
fn the_semaphore_goes_to_its_first_reader() {
    let (_card, window) = fresh();
    assert_eq!(window.read(SWSM) & 1, 0, "free, and taken by that");
    assert_eq!(window.read(SWSM) & 1, 1);
    window.write(SWSM, 0b11);
    assert_eq!(window.read(SWSM), 0b11);
    window.write(SWSM, 0);
    assert_eq!(window.read(SWSM), 0);
}
