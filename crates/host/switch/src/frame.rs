//! The header fields that the switch reads.

use ringpass_memory::RawBytes;
use ringpass_port::MacAddress;

/// The first 14 bytes of a frame as two words in memory order: bytes 0 to 7 and bytes 6 to 13.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawHeader([u64; 2]);

impl RawHeader {
    /// A value that no frame has: the bytes common to both words differ.
    pub(crate) const NONE: Self = Self([u64::MAX, 0]);

    /// Reads the header; `None` if the frame is too short.
    #[inline]
    pub(crate) fn of<'a>(frame: impl Into<RawBytes<'a>>) -> Option<Self> {
        let frame = frame.into();
        let second = frame.array(6)?;
        Some(Self([frame.array(0)?, second].map(u64::from_ne_bytes)))
    }

    /// Returns a hash of all of it: a product whose halves are folded.
    #[inline]
    pub(crate) fn hash(self, secret: [u64; 2]) -> u64 {
        let [first, second] = [0, 1].map(|word| u128::from(self.0[word] ^ secret[word]));
        let product = first * second;
        product as u64 ^ (product >> 64) as u64
    }

    #[inline]
    pub(crate) fn header(self) -> Header {
        let [first, second] = self.0.map(u64::from_be);
        Header { destination: first >> 16, source: second >> 16, ethertype: second as u16 }
    }
}

/// The Ethernet header, with addresses as 48-bit numbers.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) destination: u64,
    pub(crate) source: u64,
    pub(crate) ethertype: u16,
}

impl Header {
    /// Returns whether the source is the address of a station, not of a group or zeros.
    #[inline]
    pub(crate) fn has_source(&self) -> bool {
        is_station(self.source)
    }
}

/// Returns an address as a 48-bit number.
pub(crate) fn number(mac: MacAddress) -> u64 {
    mac.0.into_iter().fold(0, |number, byte| number << 8 | u64::from(byte))
}

/// Returns the address that is this 48-bit number.
pub(crate) fn address(number: u64) -> MacAddress {
    let [_, _, bytes @ ..] = number.to_be_bytes();
    MacAddress(bytes)
}

/// Returns whether this may be the address of a station: not of a group, and not zeros.
#[inline]
pub(crate) fn is_station(mac: u64) -> bool {
    mac != 0 && !is_group(mac)
}

/// Returns whether this is a multicast or broadcast address.
#[inline]
pub(crate) fn is_group(mac: u64) -> bool {
    mac >> 40 & 1 != 0
}

/// Returns whether this is one of the addresses 01:80:c2:00:00:00 to 0f, whose frames bridges do not forward
/// (IEEE 802.1Q-2018, table 8-1).
#[inline]
pub(crate) fn is_reserved(mac: u64) -> bool {
    mac >> 4 == 0x0180_c200_0000 >> 4
}
