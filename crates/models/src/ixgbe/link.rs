//! The link, and what tells of it: general status, pins, auto-negotiation, the bus to the module and that to the PHY.

use ringpass_registers::ixgbe::{bits::*, *};

use super::bits::*;
use super::device::Device;

/// What the card's port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    /// An SFP+ cage, with a module in it.
    Fiber,
    /// A backplane, with auto-negotiation.
    Backplane,
    /// Twisted pair, with a PHY.
    Copper,
}

impl Media {
    /// What a card with this PCI device id has.
    pub(super) fn of(device: u16) -> Self {
        match device {
            0x10f7 | 0x10f8 | 0x10f9 | 0x10fc | 0x1514 | 0x1517 | 0x152a => Self::Backplane,
            0x1528 | 0x1560 | 0x1563 | 0x15d1 | 0x151c => Self::Copper,
            _ => Self::Fiber,
        }
    }

    /// AUTOC's link mode as the EEPROM has it (8.2.3.22.19).
    pub(super) fn link_mode(self) -> u32 {
        match self {
            Self::Fiber => AUTOC_LMS_10G_SERIAL,
            Self::Backplane | Self::Copper => AUTOC_LMS_KX4_KX_KR,
        }
    }
}

/// ESDP (8.2.3.1.4): data of the pins 0 to 7; above them a bit each that makes it an output.
const PINS: u32 = 0xff;
/// The pin that says that a module is in the cage.
const MODULE_PRESENT: u32 = 1 << 2;
/// ANLP1 (8.2.3.22.23): state of auto-negotiation, which is never the first one; the partner's pause bits.
const AN_STATE: u32 = 0xe << 16;
const PARTNER_PAUSE: u32 = 0x0c00;
/// LINKS (8.2.3.22.20): auto-negotiation of a backplane is complete.
const AN_COMPLETE: u32 = 1 << 31;
/// LINKS2 (8.2.3.22.21): the partner negotiates.
const AN_SUPPORTED: u32 = 1 << 6;

impl Device {
    pub(super) fn set_link(&mut self, up: bool) {
        if self.link.up != up {
            self.link.up = up;
            self.interrupts.other(EICR_LSC, &self.registers);
        }
    }

    pub(super) fn status(&self) -> u32 {
        let disabled = self.registers.get(CTRL.offset) & CTRL_MASTER_DISABLE != 0;
        let link = if self.link.up { STATUS_LINK_UP } else { 0 };
        link | if disabled { 0 } else { STATUS_MASTER_ENABLE }
    }

    pub(super) fn links(&self) -> u32 {
        let speed = match self.link.mbps {
            0..1_000 => LINKS_SPEED_100M,
            1_000..10_000 => LINKS_SPEED_1G,
            10_000.. => LINKS_SPEED_10G,
        };
        let negotiated = if self.media == Media::Backplane { AN_COMPLETE } else { 0 };
        if self.link.up { LINKS_UP | speed | negotiated } else { 0 }
    }

    pub(super) fn links2(&self) -> u32 {
        if self.media == Media::Backplane && self.link.up { AN_SUPPORTED } else { 0 }
    }

    pub(super) fn partner(&self) -> u32 {
        AN_STATE | if self.media == Media::Backplane { PARTNER_PAUSE } else { 0 }
    }

    /// ESDP: pins that are inputs show what is outside.
    pub(super) fn pins(&self) -> u32 {
        let value = self.registers.get(ESDP.offset);
        let inputs = !(value >> 8) & PINS;
        let outside = if self.media == Media::Fiber { MODULE_PRESENT } else { 0 };
        value & !inputs | outside & inputs
    }

    /// I2CCTL: the lines, with the module's hand on them if there is one.
    pub(super) fn i2c(&self) -> u32 {
        self.sfp.read()
    }

    pub(super) fn set_i2c(&mut self, value: u32) {
        self.sfp.write(value);
    }

    /// MSCA was written.
    pub(super) fn mdio(&mut self, command: u32) {
        let present = self.media == Media::Copper;
        let data = self.registers.get(MSRWD.offset);
        let (command, data) = self.phy.cycle(command, data, present, self.link.up);
        self.registers.set(MSCA.offset, command);
        self.registers.set(MSRWD.offset, data);
    }
}
