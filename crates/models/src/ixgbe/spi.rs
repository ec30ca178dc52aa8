//! The EEPROM's own bus, whose lines a driver moves one by one through EEC (8.2.3.2.1). Reads and the status only: an
//! EEPROM that is write-protected.

use super::eeprom::Eeprom;

const CLOCK: u32 = 1 << 0;
/// Not selected, while it is high.
const SELECT: u32 = 1 << 1;
const IN: u32 = 1 << 2;
const OUT: u32 = 1 << 3;
const REQUEST: u32 = 1 << 6;
const GRANT: u32 = 1 << 7;

/// Bit 3 of this command is bit 8 of the address.
const READ: u32 = 0b011;
const READ_MASK: u32 = 0b1111_0111;
const HIGH: u32 = 0b1000;
const STATUS: u32 = 0b101;
const COMMAND_BITS: u32 = 8;
const ADDRESS_BITS: u32 = 8;

#[derive(Default)]
pub(super) struct Spi {
    lines: u32,
    /// Bits received since it was selected, and how many.
    shifted: u32,
    count: u32,
    /// The next byte to send, and the bits of the one that is being sent, the highest next.
    next: usize,
    sends: u8,
    out: bool,
}

impl Spi {
    /// What EEC reads of the lines: access is granted to whoever asks.
    pub(super) fn read(&self) -> u32 {
        let grant = if self.lines & REQUEST != 0 { GRANT } else { 0 };
        grant | if self.out { OUT } else { 0 }
    }

    /// EEC was written.
    pub(super) fn write(&mut self, value: u32, eeprom: &Eeprom) {
        let before = std::mem::replace(&mut self.lines, value);
        if value & SELECT != 0 || value & REQUEST == 0 {
            *self = Self { lines: value, ..Self::default() };
            return;
        }
        match (before & CLOCK, value & CLOCK) {
            (0, CLOCK) => self.rises(value & IN != 0),
            (CLOCK, 0) => self.falls(eeprom),
            _ => {}
        }
    }

    /// The driver's bit is taken.
    fn rises(&mut self, bit: bool) {
        if self.count < COMMAND_BITS + ADDRESS_BITS {
            self.shifted = self.shifted << 1 | u32::from(bit);
        }
        self.count = self.count.saturating_add(1);
    }

    /// The next bit is put onto the line.
    fn falls(&mut self, eeprom: &Eeprom) {
        let command = if self.count < COMMAND_BITS { 0 } else { self.shifted >> (self.count.min(16) - COMMAND_BITS) };
        let begins = match command {
            // Ready, and nothing is being written.
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
