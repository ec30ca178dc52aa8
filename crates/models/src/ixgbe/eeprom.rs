//! The EEPROM: the MAC address and a valid checksum (chapter 6); all other words are blank.

use ringpass_port::MacAddress;

/// Pointer to the section of LAN core 0, which begins with its length and the MAC address.
const CORE0_POINTER: usize = 0x09;
const CORE0: usize = 0x40;
/// The word that makes the sum of words 0 to 0x3F what it has to be.
const CHECKSUM: usize = 0x3F;
const SUM: u16 = 0xBABA;
const BLANK: u16 = 0xFFFF;

pub(super) struct Eeprom([u16; 0x80]);

impl Eeprom {
    pub(super) fn new(mac: MacAddress) -> Self {
        let mut words = [BLANK; 0x80];
        words[CORE0_POINTER] = CORE0 as u16;
        let address = mac.0.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        words[CORE0] = 4;
        words[CORE0 + 1..].iter_mut().zip(address).for_each(|(word, value)| *word = value);
        // Linux also sums the sections that words 3 to 0x0E point to: this one sums to 0, so that both are content.
        let sum = |words: &[u16]| words.iter().fold(0u16, |sum, &word| sum.wrapping_add(word));
        words[CORE0 + 4] = sum(&words[CORE0 + 1..CORE0 + 4]).wrapping_neg();
        words[CHECKSUM] = SUM.wrapping_sub(sum(&words[..CHECKSUM]));
        Self(words)
    }

    pub(super) fn word(&self, address: usize) -> u16 {
        self.0.get(address).copied().unwrap_or(BLANK)
    }
}
