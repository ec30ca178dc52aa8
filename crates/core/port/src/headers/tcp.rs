//! TCP headers (RFC 9293, 3.1).

use super::{ChecksumChange, header, ports};

/// Control bits of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// The sender sends no more.
    pub const FIN: Self = Self(0x01);
    /// The connection begins.
    pub const SYN: Self = Self(0x02);
    /// The connection is aborted.
    pub const RST: Self = Self(0x04);
    /// The receiver is to deliver the data at once.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number is valid.
    pub const ACK: Self = Self(0x10);

    /// Returns whether all bits of `flags` are set.
    #[inline]
    pub fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

header! {
    /// A TCP header without options, which stay in the packet. Its checksum follows each change.
    Tcp, 20, |bytes| bytes[12] >> 4 >= 5
}

/// Offset of the checksum.
const CHECKSUM: usize = 16;

ports!(Tcp);

impl Tcp {
    /// Returns the number of the segment's first byte.
    #[inline]
    pub fn sequence(&self) -> u32 {
        u32::from_be_bytes(self.get(4))
    }

    /// Returns the number of the byte that the sender expects next.
    #[inline]
    pub fn acknowledgement(&self) -> u32 {
        u32::from_be_bytes(self.get(8))
    }

    /// Returns the length of the header with its options, 20 to 60 bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0[12] >> 4) * 4
    }

    /// Returns the control bits.
    #[inline]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.0[13])
    }

    /// Returns the window as the header has it, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        u16::from_be_bytes(self.get(14))
    }

    /// Returns the checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes(self.get(CHECKSUM))
    }

    /// Adjusts the checksum to a change of the IP header's addresses.
    #[inline]
    pub fn apply(&mut self, change: ChecksumChange) {
        self.set(CHECKSUM, change.apply(self.checksum()).to_be_bytes());
    }
}
