//! Registers: resets, access kinds, EEPROM, link.

use std::sync::Arc;

use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;
use ringpass_pci::registers::{RO, RW, Reg, WO, Window};
use ringpass_port::Link;

use crate::ixgbe::driver::{Driver, own_mac};

fn fresh() -> (Arc<Card>, Window) {
    let card = Card::new(&CardConfig::default());
    let window = card.window().unwrap();
    (card, window)
}

fn at(offset: u32) -> Reg<RW> {
    Reg::new("by its offset", offset)
}

#[test]
fn the_card_says_what_it_is() {
    let card = Card::new(&CardConfig { device: 0x1528, ..CardConfig::default() });
    assert_eq!((card.id().vendor, card.id().device), (0x8086, 0x1528));
    assert_eq!(card.description(), "a model in this process");
}

#[test]
fn unknown_registers_read_zero() {
    let (_card, window) = fresh();
    for offset in [0x0c, 0x10020, 0x1fffc, 0x7_0000, 0x04, 0x3] {
        window.write(at(offset), !(CTRL_RST | CTRL_LRST));
        if offset != 0x04 {
            assert_eq!(window.read(at(offset)), 0, "{offset:#x}");
        }
    }
}

#[test]
fn reset_clears_itself_and_all_registers() {
    let mut driver = Driver::started();
    driver.window.write(FCTRL, FCTRL_MPE);
    driver.window.write(CTRL, CTRL_RST | CTRL_LRST);
    assert_eq!(driver.window.read(CTRL) & (CTRL_RST | CTRL_LRST), 0);
    assert_eq!(driver.window.read(FCTRL), 0);
    assert_eq!(driver.window.read(RXDCTL.at(0)) & RXDCTL_ENABLE, 0);
    assert_eq!(driver.window.read(RDT.at(0)), 0, "the doorbell too");
    driver.wire.frames().to_card.push_back(vec![0xff; 60]);
    assert_eq!(driver.step(), 0, "nothing is received after a reset");
}

#[test]
fn the_interrupt_mask_is_set_and_cleared_by_ones() {
    let (_card, window) = fresh();
    window.write(EIMS, 0x0f);
    window.write(EIMS, 0xf0);
    window.write(EIMS, 0);
    assert_eq!(window.read(EIMS), 0xff, "zeros do nothing");
    window.write(EIMC, 0x3c);
    assert_eq!(window.read(EIMS), 0xc3);
    window.write(EIMC, 0x7fff_ffff);
    assert_eq!(window.read(EIMS), 0);
    let read_back: Reg<RO> = Reg::new(EIMC.name, EIMC.offset);
    assert_eq!(window.read(read_back), 0, "EIMC is write-only");
    let _: Reg<WO> = EIMC;
}

#[test]
fn interrupt_causes_are_cleared_by_ones_and_by_reading() {
    let (card, window) = fresh();
    card.set_link(false);
    window.write(EICR, 1 << 19);
    assert_eq!(window.read(EICR), 1 << 20, "another bit does not clear it");
    assert_eq!(window.read(EICR), 0);
    card.set_link(true);
    window.write(EICR, 1 << 20);
    assert_eq!(window.read(EICR), 0);
}

#[test]
fn the_eeprom_has_the_address_and_its_checksum() {
    let (_card, window) = fresh();
    assert_eq!(window.read(EEC) & (EEC_PRES | EEC_AUTO_RD), EEC_PRES | EEC_AUTO_RD);
    let word = |address: u32| {
        window.write(EERD, address << 2 | EERD_START);
        let value = window.read(EERD);
        assert_eq!(value & 0xffff, address << 2 | EERD_DONE, "word {address:#x}");
        (value >> 16) as u16
    };
    let sum = (0..=0x3f).map(word).fold(0u16, u16::wrapping_add);
    assert_eq!(sum, 0xbaba);
    let core = u32::from(word(0x09));
    let mac: Vec<u8> = (1..=3).flat_map(|i| word(core + i).to_le_bytes()).collect();
    assert_eq!(mac, own_mac());
    assert_eq!(word(0x3fff), 0xffff, "beyond its end");
}

#[test]
fn the_address_is_loaded_after_reset() {
    let (_card, window) = fresh();
    window.write(RAL.at(0), 0);
    window.write(CTRL, CTRL_RST);
    let [a, b, c, d, e, f] = own_mac();
    assert_eq!(window.read(RAL.at(0)), u32::from_le_bytes([a, b, c, d]));
    assert_eq!(window.read(RAH.at(0)), u32::from_le_bytes([e, f, 0, 0]) | RAH_AV);
}

#[test]
fn dma_is_initialised_and_stays_so() {
    let (_card, window) = fresh();
    assert_ne!(window.read(RDRXCTL) & RDRXCTL_DMAIDONE, 0);
    window.write(RDRXCTL, RDRXCTL_CRCSTRIP);
    assert_eq!(window.read(RDRXCTL), RDRXCTL_CRCSTRIP | RDRXCTL_DMAIDONE);
    let before = window.read(EEC);
    window.write(EEC, 0xffff_ffff);
    assert_eq!(window.read(EEC), before | 0xf7, "pins, FWE and a request are software's; it is granted");
}

#[test]
fn the_link_is_as_the_cable_is() {
    let (card, window) = fresh();
    window.set(AUTOC, AUTOC_AN_RESTART);
    assert_eq!(window.read(AUTOC) & AUTOC_AN_RESTART, 0, "restart clears itself");
    assert_eq!(window.read(LINKS), LINKS_UP | LINKS_SPEED_10G);
    card.set_link(false);
    assert_eq!(window.read(LINKS), 0);
    let slow = Card::new(&CardConfig { link: Link { up: true, mbps: 1000 }, ..CardConfig::default() });
    assert_eq!(slow.window().unwrap().read(LINKS), LINKS_UP | LINKS_SPEED_1G);
}

#[test]
fn old_addresses_reach_the_same_registers() {
    let (_card, window) = fresh();
    for (old, new) in [
        (0x02100 + 4 * 15, SRRCTL.at(15)),
        (0x02200 + 4 * 15, DCA_RXCTRL.at(15)),
        (0x05400 + 8 * 3, RAL.at(3)),
        (0x05404 + 8 * 15, RAH.at(15)),
        (0x05C00 + 4 * 31, RETA.at(31)),
        (0x05C80 + 4 * 9, RSSRK.at(9)),
        (0x05818, MRQC),
    ] {
        window.write(at(old), 0x0000_0405);
        assert_eq!(window.read(new), 0x0000_0405, "{old:#x}");
        assert_eq!(window.read(at(old)), 0x0000_0405, "{old:#x}");
    }
}

#[test]
fn doorbells_are_the_tail_registers() {
    let (_card, window) = fresh();
    window.doorbell(TDT.at(127)).ring(7);
    assert_eq!(window.read(TDT.at(127)), 7);
    window.write(RDT.at(63), 9);
    assert_eq!(window.read(RDT.at(63)), 9);
    window.write(RDT.at(127), 0x1_0009);
    assert_eq!(window.read(RDT.at(127)), 9, "16 bits");
}

#[test]
fn heads_are_read_only() {
    let mut driver = Driver::started();
    driver.send_frame(0, &[0; 60]);
    driver.window.write(at(TDH.at(0).offset), 5);
    driver.window.write(at(RDH.at(0).offset), 5);
    assert_eq!((driver.window.read(TDH.at(0)), driver.window.read(RDH.at(0))), (1, 0));
}
