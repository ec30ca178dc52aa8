//! IPv4 headers (RFC 791, 3.1).

use std::net::Ipv4Addr;

use super::{ChecksumChange, header};

/// IpProtocol of what follows an IP header (IANA, IpProtocol Numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// ICMP.
    pub const ICMP: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// ICMPv6.
    pub const ICMPV6: Self = Self(58);
}

header! {
    /// An IPv4 header without options, which stay in the packet. Its checksum follows each change.
    Ipv4, 20, |bytes| matches!(bytes[0], 0x45..=0x4f)
}

/// Offset of the checksum.
const CHECKSUM: usize = 10;

impl Ipv4 {
    /// Creates a header without options, with DF set and identification 0 (RFC 6864), for `payload` bytes behind it.
    ///
    /// # Panics
    /// If they are more than 65,515.
    #[inline]
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: IpProtocol, payload: u16) -> Self {
        let mut header = Self([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol.0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
        // The checksum of a header of zeros is all ones; all changes from there are known.
        let words = [[0x45, 0], [0x40, 0], [64, protocol.0]];
        let sum = words.iter().fold(ChecksumChange::default(), |sum, word| sum.and(ChecksumChange::of(&[0; 2], word)));
        header.apply(sum);
        header.set_total_len(payload.checked_add(20).expect("a packet of at most 65,535 bytes"));
        _ = header.set_source(source);
        _ = header.set_destination(destination);
        header
    }

    /// Returns the length of the header with its options, 20 to 60 bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0[0] & 15) * 4
    }

    /// Returns the length of the packet with this header, in bytes. Behind it there may be padding of the frame.
    #[inline]
    pub fn total_len(&self) -> usize {
        u16::from_be_bytes(self.get(2)).into()
    }

    /// Changes the length of the packet with this header, in bytes.
    #[inline]
    pub fn set_total_len(&mut self, len: u16) {
        _ = self.change(2, len.to_be_bytes());
    }

    /// Returns the differentiated services code point and ECN bits.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.0[1]
    }

    /// Changes the differentiated services code point and ECN bits.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        _ = self.change(0, [self.0[0], class]);
    }

    /// Returns the identification of a fragmented packet.
    #[inline]
    pub fn identification(&self) -> u16 {
        u16::from_be_bytes(self.get(4))
    }

    /// Returns whether the packet is a fragment: others belong to it, so only the first one has ports.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        u16::from_be_bytes(self.get(6)) & 0x3fff != 0
    }

    /// Returns the time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.0[8]
    }

    /// Changes the time to live.
    #[inline]
    pub fn set_ttl(&mut self, ttl: u8) {
        _ = self.change(8, [ttl, self.0[9]]);
    }

    /// Returns the protocol of what follows.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        IpProtocol(self.0[9])
    }

    /// Returns the checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes(self.get(CHECKSUM))
    }

    /// Returns the address of the sender.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        self.get(12).into()
    }

    /// Changes the address of the sender. The change also concerns the checksum of TCP and UDP.
    #[inline]
    pub fn set_source(&mut self, address: Ipv4Addr) -> ChecksumChange {
        self.change(12, address.octets())
    }

    /// Returns the address of the receiver.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        self.get(16).into()
    }

    /// Changes the address of the receiver. The change also concerns the checksum of TCP and UDP.
    #[inline]
    pub fn set_destination(&mut self, address: Ipv4Addr) -> ChecksumChange {
        self.change(16, address.octets())
    }

    /// Changes a field at an even offset, and the checksum.
    #[inline]
    fn change<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> ChecksumChange {
        let change = self.replace(at, bytes);
        self.apply(change);
        change
    }

    #[inline]
    fn apply(&mut self, change: ChecksumChange) {
        self.set(CHECKSUM, change.apply(self.checksum()).to_be_bytes());
    }
}
