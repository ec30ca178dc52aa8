//! The EEPROM (chapter 6): the words that drivers read, and a valid checksum; all other words are blank.

use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_port::MacAddress;

use super::bits::*;

/// Number of words, as EEC reports it (8.2.3.2.1).
const WORDS: usize = 256;
/// Pointer to the section of LAN core 0, which begins with its length and the MAC address.
const CORE0_POINTER: usize = 0x09;
/// Pointer to the firmware's section.
const FIRMWARE_POINTER: usize = 0x0F;
/// Board number, in hexadecimal digits.
const BOARD: usize = 0x15;
/// Pointer to the list of initialisation sequences, one for each type of SFP+ module.
const SFP_POINTER: usize = 0x2B;
/// Capabilities of the NIC; 0 for none that is unusual.
const CAPABILITIES: usize = 0x2C;
/// Version of the whole content, low and high word; bit 31 means valid.
const VERSION: usize = 0x2D;
/// Checksum: the sum of words 0 to 0x3F, and of the sections that words 3 to 0x0E point to, must be `SUM`.
const CHECKSUM: usize = 0x3F;
const SUM: u16 = 0xBABA;
const BLANK: u16 = 0xFFFF;

/// Offsets of the sections, in words.
const CORE0: usize = 0x40;
const SFP: usize = 0x50;
const SFP_SEQUENCE: usize = 0x60;
const FIRMWARE: usize = 0x70;
const PATCH: usize = 0x80;
/// Types of modules in the list: direct attach and optics, each for both LAN functions.
const MODULES: [u16; 4] = [3, 4, 5, 6];

pub(super) struct Eeprom([u16; WORDS]);

impl Eeprom {
    pub(super) fn new(mac: MacAddress) -> Self {
        let mut words = [BLANK; WORDS];
        words[CORE0_POINTER] = CORE0 as u16;
        let address = mac.0.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        words[CORE0] = 4;
        words[CORE0 + 1..].iter_mut().zip(address).for_each(|(word, value)| *word = value);
        // This section sums to 0, so that checksums with and without the sections are both valid.
        let sum = |words: &[u16]| words.iter().fold(0u16, |sum, &word| sum.wrapping_add(word));
        words[CORE0 + 4] = sum(&words[CORE0 + 1..CORE0 + 4]).wrapping_neg();
        words[BOARD..BOARD + 2].copy_from_slice(&[0x8259, 0x9000]);
        words[CAPABILITIES] = 0;
        words[VERSION..VERSION + 2].copy_from_slice(&[0x0001, 0x8000]);
        // The same for each module type: nothing has to be written to the analog part.
        words[SFP_POINTER] = SFP as u16;
        words[SFP] = 2 * MODULES.len() as u16;
        for (entry, kind) in words[SFP + 1..].chunks_exact_mut(2).zip(MODULES) {
            entry.copy_from_slice(&[kind, SFP_SEQUENCE as u16]);
        }
        // The firmware's pass-through section has the version that drivers read. There is no LESM section.
        words[FIRMWARE_POINTER] = FIRMWARE as u16;
        words[FIRMWARE + 4] = PATCH as u16;
        words[PATCH + 7] = 6;
        words[CHECKSUM] = SUM.wrapping_sub(sum(&words[..CHECKSUM]));
        Self(words)
    }

    pub(super) fn word(&self, address: usize) -> u16 {
        self.0.get(address).copied().unwrap_or(BLANK)
    }

    /// Returns a byte in the order of the serial bus: the low half of a word comes first.
    pub(super) fn byte(&self, address: usize) -> u8 {
        self.word(address / 2).to_le_bytes()[address % 2]
    }

    /// Returns what EERD reads after `value` was written to it (8.2.3.2.2).
    pub(super) fn read(&self, value: u32) -> u32 {
        if value & EERD_START == 0 {
            return value;
        }
        let address = value >> EERD_ADDRESS_SHIFT & 0x3fff;
        let word = u32::from(self.word(address as usize));
        EERD_DONE | address << EERD_ADDRESS_SHIFT | word << EERD_DATA_SHIFT
    }
}
