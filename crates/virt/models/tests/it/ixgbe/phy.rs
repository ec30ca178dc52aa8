//! The module behind I2CCTL, bit-banged, and the PHY behind MSCA.

use std::sync::Arc;

use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::Window;
use ringpass_pci::registers::ixgbe::*;

fn card(device: u16) -> (Arc<Card>, Window) {
    let card = Card::new(&CardConfig { device, ..CardConfig::default() });
    let window = card.window().unwrap();
    (card, window)
}

const CLOCK_IN: u32 = 1;
const CLOCK: u32 = 2;
const DATA_IN: u32 = 4;
const DATA: u32 = 8;

/// An I2C master.
struct I2c<'a>(&'a Window);

impl I2c<'_> {
    fn lines(&self, clock: bool, data: bool) {
        self.0.write(I2CCTL, if clock { CLOCK } else { 0 } | if data { DATA } else { 0 });
        assert_eq!(self.0.read(I2CCTL) & CLOCK_IN != 0, clock, "nobody stretches the clock");
    }

    fn start(&self) {
        self.lines(false, true);
        self.lines(true, true);
        self.lines(true, false);
        self.lines(false, false);
    }

    fn stop(&self) {
        self.lines(false, false);
        self.lines(true, false);
        self.lines(true, true);
    }

    /// Runs one cycle; returns the data line while the clock is high.
    fn bit(&self, data: bool) -> bool {
        self.lines(false, data);
        self.lines(true, data);
        let high = self.0.read(I2CCTL) & DATA_IN != 0;
        self.lines(false, data);
        high
    }

    /// Sends a byte; returns whether it was acknowledged.
    fn send(&self, byte: u8) -> bool {
        (0..8).rev().for_each(|i| _ = self.bit(byte >> i & 1 != 0));
        !self.bit(true)
    }

    fn receive(&self, acknowledge: bool) -> u8 {
        let byte = (0..8).fold(0, |byte, _| byte << 1 | u8::from(self.bit(true)));
        self.bit(!acknowledge);
        byte
    }

    fn read(&self, device: u8, offset: u8, len: usize) -> Vec<u8> {
        self.start();
        assert!(self.send(device) && self.send(offset));
        self.start();
        assert!(self.send(device | 1));
        let bytes = (0..len).map(|i| self.receive(i + 1 < len)).collect();
        self.stop();
        bytes
    }
}

#[test]
fn the_module_says_what_it_is() {
    let (_card, window) = card(0x10fb);
    let i2c = I2c(&window);
    assert_eq!(i2c.read(0xa0, 0, 4), [3, 4, 7, 0x10]);
    assert_eq!(i2c.read(0xa0, 37, 3), [0x00, 0x1b, 0x21]);
    let all = i2c.read(0xa0, 0, 256);
    let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
    assert_eq!((all[63], all[95]), (sum(&all[..63]), sum(&all[64..95])));
    let measured = i2c.read(0xa2, 96, 2);
    assert_eq!(measured, [35, 0], "degrees");
    assert_eq!(i2c.read(0xa0, 255, 2), [0, 3], "around the end");
}

#[test]
fn only_status_and_the_users_bytes_can_be_written() {
    let (_card, window) = card(0x10fb);
    let i2c = I2c(&window);
    for (device, offset, value) in [(0xa0, 0, 0x55), (0xa2, 110, 0x08), (0xa2, 96, 1)] {
        i2c.start();
        assert!(i2c.send(device) && i2c.send(offset) && i2c.send(value));
        i2c.stop();
    }
    assert_eq!((i2c.read(0xa0, 0, 1), i2c.read(0xa2, 110, 1), i2c.read(0xa2, 96, 1)), (vec![3], vec![8], vec![35]));
}

#[test]
fn nobody_else_answers() {
    let (_card, window) = card(0x10fb);
    let i2c = I2c(&window);
    i2c.start();
    assert!(!i2c.send(0xf8), "another device");
    i2c.stop();
    // An aborted transfer leaves the module ready for the next one.
    i2c.start();
    assert!(i2c.send(0xa0));
    i2c.bit(true);
    assert_eq!(i2c.read(0xa0, 3, 1), [0x10]);
    let (_card, window) = card(0x10f7);
    let i2c = I2c(&window);
    i2c.start();
    assert!(!i2c.send(0xa0), "a backplane has no module");
    i2c.stop();
    assert_eq!(window.read(ESDP) & 4, 0);
}

#[test]
fn the_cage_says_that_it_is_full() {
    let (_card, window) = card(0x10fb);
    assert_eq!(window.read(ESDP) & 4, 4);
    window.write(ESDP, 0x0400);
    assert_eq!(window.read(ESDP), 0x0400, "an output shows what was written");
}

const COMMAND: u32 = 1 << 30;

fn mdio(window: &Window, phy: u32, device: u32, register: u32, operation: u32, value: u16) -> u16 {
    for operation in [0, operation] {
        window.write(MSRWD, value.into());
        window.write(MSCA, register | device << 16 | phy << 21 | operation << 26 | COMMAND);
        assert_eq!(window.read(MSCA) & COMMAND, 0);
    }
    (window.read(MSRWD) >> 16) as u16
}

#[test]
fn the_phy_says_what_it_is() {
    let (card, window) = card(0x1528);
    let read = |device, register| mdio(&window, 0, device, register, 3, 0);
    assert_eq!((read(1, 2), read(1, 3)), (0x0154, 0x0200));
    assert_eq!([1, 3, 4].map(|device| read(device, 8) >> 14), [0b10; 3], "a device answers");
    assert_eq!((read(7, 1) & 0x24, read(30, 1) & 8), (0x24, 8));
    card.set_link(false);
    assert_eq!((read(7, 1) & 0x24, read(30, 1) & 8), (0, 0));
    assert_eq!(read(29, 5), 0, "unknown registers");
    mdio(&window, 0, 7, 16, 1, 0x0101);
    mdio(&window, 0, 1, 2, 1, 0xffff);
    mdio(&window, 0, 4, 0, 1, 0xffff);
    assert_eq!((read(7, 16), read(1, 2), read(4, 0)), (0x0101, 0x0154, 0x7dff), "written, read-only, self-clearing");
    assert_eq!(mdio(&window, 3, 1, 2, 3, 0), 0xffff, "nobody at that address");
}

#[test]
fn cards_with_a_module_have_no_phy() {
    let (_card, window) = card(0x10fb);
    assert_eq!(mdio(&window, 0, 1, 2, 3, 0), 0xffff);
}
