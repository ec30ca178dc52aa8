//! What the switch reads of a frame, and copies of it.

use ringpass_memory::{Cache, Packet, RawBytes};
use ringpass_port::{chain, copy_flags};

/// The first 14 bytes of a frame: the first eight of them, and the last eight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start([u64; 2]);

impl Start {
    /// No frame's: the bytes that are in both differ.
    pub(crate) const NONE: Self = Self([u64::MAX, 0]);

    /// `None` of a frame that is too short.
    #[inline]
    pub(crate) fn of<'a>(frame: impl Into<RawBytes<'a>>) -> Option<Self> {
        let bytes: [u8; 14] = frame.into().array(0)?;
        Some(Self([0, 6].map(|at| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes")))))
    }

    #[inline]
    pub(crate) fn header(self) -> Header {
        let Self([first, second]) = self;
        Header { destination: first >> 16, source: second >> 16, ethertype: second as u16 }
    }
}

/// The same, addresses as numbers of 48 bits.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) destination: u64,
    pub(crate) source: u64,
    pub(crate) ethertype: u16,
}

impl Header {
    /// Whether it comes from a station, rather than from a group or nobody.
    #[inline]
    pub(crate) fn has_source(&self) -> bool {
        self.source != 0 && !is_group(self.source)
    }
}

/// A multicast or broadcast address.
#[inline]
pub(crate) fn is_group(mac: u64) -> bool {
    mac >> 40 & 1 != 0
}

/// 01:80:c2:00:00:00 to 0f: what bridges do not pass on (IEEE 802.1Q-2018, table 8-1).
#[inline]
pub(crate) fn is_reserved(mac: u64) -> bool {
    mac >> 4 == 0x0180_c200_0000 >> 4
}

/// A copy with all that is known and asked of the packet; `None` if there are too few buffers.
pub(crate) fn copy(packet: &Packet, cache: &mut Cache) -> Option<Packet> {
    let mut copy = chain(packet.segments(), || cache.take(1).next())?;
    copy_flags(packet, &mut copy);
    Some(copy)
}
