//! ICMP headers (RFC 792), and those of ICMPv6 (RFC 4443), which have the same shape.

use super::{ChecksumChange, header};

header! {
    /// The first eight bytes of an ICMP message. Its checksum follows each change.
    Icmp, 8, |_| true
}

impl Icmp {
    /// Type of an answer to an echo request, of ICMP.
    pub const ECHO_REPLY: u8 = 0;
    /// Type of an echo request, of ICMP.
    pub const ECHO_REQUEST: u8 = 8;
    /// Type of an echo request, of ICMPv6.
    pub const ECHO_REQUEST_V6: u8 = 128;
    /// Type of an answer to an echo request, of ICMPv6.
    pub const ECHO_REPLY_V6: u8 = 129;

    /// Returns the type of the message.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.0[0]
    }

    /// Changes the type of the message, and leaves its code.
    #[inline]
    pub fn set_kind(&mut self, kind: u8) {
        let change = self.replace(0, [kind, self.0[1]]);
        self.apply(change);
    }

    /// Returns the code within the type.
    #[inline]
    pub fn code(&self) -> u8 {
        self.0[1]
    }

    /// Returns the identifier of an echo request or reply, which a network address translator changes like a port.
    #[inline]
    pub fn identifier(&self) -> u16 {
        u16::from_be_bytes(self.get(4))
    }

    /// Changes the identifier of an echo request or reply.
    #[inline]
    pub fn set_identifier(&mut self, identifier: u16) {
        let change = self.replace(4, identifier.to_be_bytes());
        self.apply(change);
    }

    /// Returns the sequence number of an echo request or reply.
    #[inline]
    pub fn sequence(&self) -> u16 {
        u16::from_be_bytes(self.get(6))
    }

    /// Returns the checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes(self.get(2))
    }

    /// Adjusts the checksum to a change of the addresses, which that of ICMPv6 covers and that of ICMP does not.
    #[inline]
    pub fn apply(&mut self, change: ChecksumChange) {
        self.set(2, change.apply(self.checksum()).to_be_bytes());
    }
}
