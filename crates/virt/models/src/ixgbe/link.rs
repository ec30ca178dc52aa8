//! The link and the registers that show it: general status, pins, auto-negotiation, the buses to the module and
//! to the PHY.

use ringpass_pci::registers::ixgbe::{bits::*, *};

use super::bits::*;
use super::device::Device;
use super::media::Media;

/// ESDP (8.2.3.1.4): data of pins 0 to 7. The byte above has a bit for each that makes the pin an output.
const PINS: u32 = 0xff;
/// The pin that shows that a module is in the cage.
const MODULE_PRESENT: u32 = 1 << 2;
/// ANLP1 (8.2.3.22.23): state of auto-negotiation, which is never the initial one; the partner's pause bits.
const AN_STATE: u32 = 0xe << 16;
const PARTNER_PAUSE: u32 = 0x0c00;
/// LINKS (8.2.3.22.20): auto-negotiation of a backplane is complete.
const AN_COMPLETE: u32 = 1 << 31;
/// LINKS2 (8.2.3.22.21): the partner supports auto-negotiation.
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

    /// Returns what ESDP reads: input pins show their external level.
    pub(super) fn pins(&self) -> u32 {
        let value = self.registers.get(ESDP.offset);
        let inputs = !(value >> 8) & PINS;
        let outside = if self.media == Media::Fiber { MODULE_PRESENT } else { 0 };
        value & !inputs | outside & inputs
    }

    /// Returns what I2CCTL reads: the lines, as the driver and the module, if there is one, drive them.
    pub(super) fn i2c(&self) -> u32 {
        self.sfp.read()
    }

    pub(super) fn set_i2c(&mut self, value: u32) {
        self.sfp.write(value);
    }

    /// Carries out a write to MSCA.
    pub(super) fn mdio(&mut self, command: u32) {
        let present = self.media == Media::Copper;
        let data = self.registers.get(MSRWD.offset);
        let (command, data) = self.phy.cycle(command, data, present, self.link.up);
        self.registers.set(MSCA.offset, command);
        self.registers.set(MSRWD.offset, data);
    }
}
