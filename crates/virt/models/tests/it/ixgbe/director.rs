//! Flow director (7.1.2.7). The expected hashes were computed with the code of a driver (DPDK's).

use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::Driver;
use crate::ixgbe::packets::{DESTINATION_PORT, DESTINATION4, SOURCE_PORT, SOURCE4, TCP4, TCP6, UDP4};

const BUCKET_KEY: u32 = 0x3dad_14e2;
const SIGNATURE_KEY: u32 = 0x174d_3614;
/// Signature and bucket of the test packets.
const TCP4_HASH: u32 = 0x4e31_4c00;
const TCP6_HASH: u32 = 0x0674_7ceb;
/// FDIRCTRL: 64 KiB of memory, flexible bytes at offset 12.
const SMALL: u32 = 1 | 6 << 16;
const PERFECT: u32 = 1 << 4;
const REPORT: u32 = 1 << 5;
const INIT_DONE: u32 = 1 << 3;
/// FDIRCMD: commands and flags.
const ADD: u32 = 1;
const REMOVE: u32 = 2;
const QUERY: u32 = 3;
const VALID: u32 = 1 << 2;
const UPDATE: u32 = 1 << 3;
const TCP: u32 = 2 << 5;
const DROP: u32 = 1 << 9;
const LAST: u32 = 1 << 11;
const QUEUE_EN: u32 = 1 << 15;
/// Rx status: a filter matched.
const FLM: u64 = 1 << 2;

fn directed(control: u32) -> Driver {
    let mut driver = Driver::new();
    (0..4).for_each(|queue| driver.start_rx(queue, 16, SRRCTL_DESCTYPE_ADV_ONEBUF | 2));
    driver.window.write(FDIRHKEY, BUCKET_KEY);
    driver.window.write(FDIRSKEY, SIGNATURE_KEY);
    driver.window.write(FDIRCTRL, control);
    assert_ne!(driver.window.read(FDIRCTRL) & INIT_DONE, 0);
    driver
}

fn command(driver: &Driver, hash: u32, command: u32) -> u32 {
    driver.window.write(FDIRHASH, hash);
    driver.window.write(FDIRCMD, command);
    let done = driver.window.read(FDIRCMD);
    assert_eq!(done & 3, 0, "the command is done");
    done
}

fn add(driver: &Driver, hash: u32, queue: u32) {
    command(driver, hash, ADD | UPDATE | LAST | QUEUE_EN | TCP | queue << 16);
}

/// Receives a frame; returns its queue, and whether a filter matched.
fn queue_of(driver: &mut Driver, frame: &[u8]) -> (usize, bool) {
    driver.arrive(&[frame.to_vec()]);
    let received = (0..4).find_map(|queue| Some((queue, driver.receive(queue)?)));
    let (queue, received) = received.expect("a frame");
    (queue, received.status & FLM != 0)
}

#[test]
fn a_signature_brings_a_flow_to_its_queue() {
    let mut driver = directed(SMALL);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"x")), (0, false));
    add(&driver, TCP4_HASH, 2);
    add(&driver, TCP6_HASH, 3);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"x")), (2, true));
    assert_eq!(queue_of(&mut driver, &TCP6.frame(b"x")), (3, true));
    assert_eq!(queue_of(&mut driver, &UDP4.frame(b"x")), (0, false));
    assert_eq!(queue_of(&mut driver, &TCP4.tagged(5).frame(b"x")), (0, false), "the tag counts");
    let counts = [FDIRMATCH, FDIRMISS].map(|register| driver.window.read(register));
    assert_eq!(counts, [2, 3]);
    assert_eq!(driver.window.read(FDIRMATCH), 0, "cleared on read");
    add(&driver, TCP4_HASH, 1);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"x")), (1, true), "updated");
}

#[test]
fn flows_come_and_go() {
    let mut driver = directed(SMALL);
    let most = (8 << 10) - 2;
    assert_eq!(driver.window.read(FDIRFREE) & 0xffff, most);
    add(&driver, TCP4_HASH, 2);
    assert_eq!(driver.window.read(FDIRFREE) & 0xffff, most - 1);
    let found = command(&driver, TCP4_HASH, QUERY);
    assert_eq!((found & VALID, found >> 16 & 0x7f), (VALID, 2));
    assert_eq!(command(&driver, TCP4_HASH, REMOVE) & VALID, 0);
    assert_eq!(command(&driver, TCP4_HASH, QUERY) & VALID, 0);
    command(&driver, TCP4_HASH, REMOVE);
    assert_eq!(driver.window.read(FDIRFREE) & 0xffff, most);
    assert_eq!(driver.window.read(FDIRUSTAT), 1 | 1 << 16, "one added, one removed");
    assert_eq!(driver.window.read(FDIRFSTAT), 1 << 8, "one that was not there");
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"x")), (0, false));
}

#[test]
fn the_table_has_an_end() {
    let driver = directed(SMALL);
    for i in 0..8 << 10 {
        add(&driver, i << 16 | i, 1);
    }
    assert_eq!(driver.window.read(FDIRFREE), 0);
    assert_eq!(driver.window.read(FDIRUSTAT), (8 << 10) - 2);
    assert_eq!(driver.window.read(FDIRFSTAT), 2, "and two too many");
}

#[test]
fn a_new_start_empties_the_table() {
    let mut driver = directed(SMALL);
    add(&driver, TCP4_HASH, 2);
    // The sequence that drivers use: clear the heads, then write FDIRCTRL again.
    driver.window.write(FDIRFREE, 0);
    driver.window.write(FDIRCMD, driver.window.read(FDIRCMD) | 1 << 8);
    driver.window.write(FDIRCMD, driver.window.read(FDIRCMD) & !(1 << 8));
    driver.window.write(FDIRHASH, 0);
    driver.window.write(FDIRCTRL, driver.window.read(FDIRCTRL) & !INIT_DONE);
    assert_ne!(driver.window.read(FDIRCTRL) & INIT_DONE, 0);
    assert_eq!(driver.window.read(FDIRFREE), (8 << 10) - 2);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"x")), (0, false));
}

#[test]
fn flow_director_comes_before_rss_and_behind_the_filters() {
    let mut driver = directed(SMALL);
    driver.window.write(MRQC, MRQC_MRQE_RSS | MRQC_RSS_TCP_IPV4);
    (0..32).for_each(|i| driver.window.write(RETA.at(i), 0x0101_0101));
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"x")), (1, false));
    add(&driver, TCP4_HASH, 2);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"x")), (2, true));
    driver.window.write(L34TIMIR.at(0), 3 << 21);
    driver.window.write(FTQF.at(0), 1 << 31 | 0b11111 << 25 | 1 << 30 | 1 << 2);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"x")), (3, false));
}

#[test]
fn a_match_may_be_reported_in_place_of_the_hash() {
    let mut driver = directed(SMALL | REPORT);
    driver.window.write(MRQC, MRQC_MRQE_RSS | MRQC_RSS_TCP_IPV4);
    driver.window.write(RXCSUM, RXCSUM_PCSD);
    add(&driver, TCP4_HASH, 2);
    driver.arrive(&[TCP4.frame(b"x")]);
    let word = driver.receive(2).expect("a frame").word;
    assert_eq!(word & 0xf, 0xf);
    assert_eq!((word >> 48, word >> 32 & 0xffff), (0x4c00, 0x4e31));
}

/// Describes the TCP test packet in the registers of perfect filters.
fn describe(driver: &Driver) {
    driver.window.write(FDIRIPSA, u32::from_le_bytes(SOURCE4));
    driver.window.write(FDIRIPDA, u32::from_le_bytes(DESTINATION4));
    driver.window.write(FDIRPORT, u32::from(DESTINATION_PORT) << 16 | u32::from(SOURCE_PORT));
    // Flexible bytes: the EtherType, in wire order.
    driver.window.write(FDIRVLAN, 0x0008 << 16);
}

/// Sets masks that compare all bits of addresses and ports; `other` (FDIRM) selects what else is ignored.
fn masks(driver: &Driver, other: u32) {
    driver.window.write(FDIRM, other);
    for mask in [FDIRSIP4M, FDIRDIP4M, FDIRTCPM, FDIRUDPM] {
        driver.window.write(mask, 0);
    }
}

#[test]
fn a_perfect_filter_compares_all() {
    let mut driver = directed(SMALL | PERFECT | REPORT | 127 << 8);
    assert_eq!(driver.window.read(FDIRFREE), (2 << 10) - 2);
    masks(&driver, 1 | 2 | 4);
    describe(&driver);
    add(&driver, 0xc00 | 321 << 16, 3);
    let packet = TCP4.frame(b"x");
    driver.arrive(std::slice::from_ref(&packet));
    let received = driver.receive(3).expect("a frame");
    assert_eq!((received.word >> 32 & 0xffff, received.word >> 48), (321, 0x0c00 | received.word >> 48 & 0x7000));
    for at in [29, 33, 35, 37] {
        let mut other = packet.clone();
        other[at] ^= 1;
        assert_eq!(queue_of(&mut driver, &other), (0, false), "byte {at}");
    }
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"another payload")), (3, true));
    // Dropped: the frame goes to the drop queue, which is not enabled.
    command(&driver, 0xc00 | 321 << 16, ADD | UPDATE | LAST | QUEUE_EN | DROP | TCP | 127 << 16);
    driver.arrive(std::slice::from_ref(&packet));
    assert!((0..4).all(|queue| driver.receive(queue).is_none()));
    assert_eq!(driver.card.counters().rx_queue_disabled, 1);
}

#[test]
fn masked_bits_do_not_count_in_a_perfect_match() {
    let mut driver = directed(SMALL | PERFECT);
    masks(&driver, 1 | 2 | 4 | 16);
    driver.window.write(FDIRSIP4M, u32::from_le_bytes([0, 0, 0, 0xff]));
    driver.window.write(FDIRTCPM, 0x0000_ffff);
    describe(&driver);
    // The bucket of the packet without its source port, the last octet of its source address and its flexible
    // bytes.
    add(&driver, 0x1186, 2);
    let mut packet = TCP4.frame(b"x");
    assert_eq!(queue_of(&mut driver, &packet), (2, true));
    packet[29] = 200;
    packet[34] = 1;
    assert_eq!(queue_of(&mut driver, &packet), (2, true));
    packet[28] ^= 1;
    assert_eq!(queue_of(&mut driver, &packet), (0, false));
}
