//! The EEPROM's serial bus, which a driver bit-bangs through EEC (8.2.3.2.1). The EEPROM is write-protected:
//! only reads and the status command work.

use super::eeprom::Eeprom;

const CLOCK: u32 = 1 << 0;
/// Chip select, active low.
const SELECT: u32 = 1 << 1;
const IN: u32 = 1 << 2;
const OUT: u32 = 1 << 3;
const REQUEST: u32 = 1 << 6;
const GRANT: u32 = 1 << 7;

/// Read command. Its bit 3 is bit 8 of the address.
const READ: u32 = 0b011;
const READ_MASK: u32 = 0b1111_0111;
const HIGH: u32 = 0b1000;
const STATUS: u32 = 0b101;
const COMMAND_BITS: u32 = 8;
const ADDRESS_BITS: u32 = 8;

#[derive(Default)]
pub(super) struct Spi {
    lines: u32,
    /// Bits received since the chip was selected, and their number.
    shifted: u32,
    count: u32,
    /// Address of the next byte to send; remaining bits of the current byte, highest first.
    next: usize,
    sends: u8,
    out: bool,
}

impl Spi {
    /// Returns the bits of EEC for the bus. Access is granted to everyone who requests it.
    pub(super) fn read(&self) -> u32 {
        let grant = if self.lines & REQUEST != 0 { GRANT } else { 0 };
        grant | if self.out { OUT } else { 0 }
    }

    /// Carries out a write to EEC.
    pub(super) fn write(&mut self, value: u32, eeprom: &Eeprom) {
        let before = std::mem::replace(&mut self.lines, value);
        if value & SELECT != 0 || value & REQUEST == 0 {
            *self = Self { lines: value, ..Self::default() };
            return;
        }
        match (before & CLOCK, value & CLOCK) {
            (0, CLOCK) => self.clock_rises(value & IN != 0),
            (CLOCK, 0) => self.clock_falls(eeprom),
            _ => {}
        }
    }

    /// Shifts in the driver's bit at a rising edge of the clock.
    fn clock_rises(&mut self, bit: bool) {
        if self.count < COMMAND_BITS + ADDRESS_BITS {
            self.shifted = self.shifted << 1 | u32::from(bit);
        }
        self.count = self.count.saturating_add(1);
    }

    /// Puts the next bit onto the line at a falling edge of the clock.
    fn clock_falls(&mut self, eeprom: &Eeprom) {
        let command = if self.count < COMMAND_BITS { 0 } else { self.shifted >> (self.count.min(16) - COMMAND_BITS) };
        let begins = match command {
            // Status 0: ready, no write in progress.
            STATUS => return self.out = false,
            _ if command & READ_MASK == READ => COMMAND_BITS + ADDRESS_BITS,
            _ => return,
        };
        if self.count < begins {
            return;
        }
        if self.count == begins {
            self.next = (self.shifted & 0xff | (command & HIGH) << 5) as usize;
        }
        if (self.count - begins).is_multiple_of(8) {
            self.sends = eeprom.byte(self.next);
            self.next += 1;
        }
        self.out = self.sends & 0x80 != 0;
        self.sends <<= 1;
    }
}
