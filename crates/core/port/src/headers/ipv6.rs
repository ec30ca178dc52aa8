//! IPv6 headers (RFC 8200, 3).

use std::net::Ipv6Addr;

use super::{ChecksumChange, IpProtocol, header};

header! {
    /// An IPv6 header without extension headers, which stay in the packet.
    Ipv6, 40, |bytes| bytes[0] >> 4 == 6
}

impl Ipv6 {
    /// Creates a header for `payload` bytes behind it, with a hop limit of 64.
    #[inline]
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr, protocol: IpProtocol, payload: u16) -> Self {
        let mut header = Self([0; 40]);
        header.set(0, [0x60]);
        header.set_payload_len(payload);
        header.set(6, [protocol.0, 64]);
        header.set(8, source.octets());
        header.set(24, destination.octets());
        header
    }

    /// Returns the traffic class: differentiated services code point and ECN bits.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (u16::from_be_bytes(self.get(0)) >> 4) as u8
    }

    /// Returns the flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        u32::from_be_bytes(self.get(0)) & 0xf_ffff
    }

    /// Returns the length of what follows, in bytes.
    #[inline]
    pub fn payload_len(&self) -> usize {
        u16::from_be_bytes(self.get(4)).into()
    }

    /// Changes the length of what follows, in bytes.
    #[inline]
    pub fn set_payload_len(&mut self, len: u16) {
        self.set(4, len.to_be_bytes());
    }

    /// Returns what follows: a protocol, or the kind of an extension header.
    #[inline]
    pub fn next_header(&self) -> IpProtocol {
        IpProtocol(self.0[6])
    }

    /// Returns the hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.0[7]
    }

    /// Changes the hop limit.
    #[inline]
    pub fn set_hop_limit(&mut self, hops: u8) {
        self.0[7] = hops;
    }

    /// Returns the address of the sender.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        self.get(8).into()
    }

    /// Changes the address of the sender. The change concerns the checksum of TCP, UDP and ICMPv6.
    #[inline]
    pub fn set_source(&mut self, address: Ipv6Addr) -> ChecksumChange {
        self.replace(8, address.octets())
    }

    /// Returns the address of the receiver.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        self.get(24).into()
    }

    /// Changes the address of the receiver. The change concerns the checksum of TCP, UDP and ICMPv6.
    #[inline]
    pub fn set_destination(&mut self, address: Ipv6Addr) -> ChecksumChange {
        self.replace(24, address.octets())
    }
}
