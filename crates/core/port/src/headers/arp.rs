//! Messages of ARP between Ethernet and IPv4 addresses (RFC 826).

use std::net::Ipv4Addr;

use super::{EtherType, Ethernet, header};
use crate::MacAddress;

header! {
    /// An ARP message for Ethernet and IPv4; others are not read.
    Arp, 28, |bytes| bytes[..6] == [0, 1, 8, 0, 6, 4]
}

impl Arp {
    /// Operation of a request.
    pub const REQUEST: u16 = 1;
    /// Operation of a reply.
    pub const REPLY: u16 = 2;

    /// Creates a request for the hardware address of `target`.
    pub fn request(sender: MacAddress, sender_ip: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self::new(Self::REQUEST, sender, sender_ip, MacAddress::default(), target)
    }

    /// Returns the answer to this request: `address` is the hardware address that it asks for.
    pub fn reply(&self, address: MacAddress) -> Self {
        Self::new(Self::REPLY, address, self.target_ip(), self.sender(), self.sender_ip())
    }

    fn new(operation: u16, sender: MacAddress, sender_ip: Ipv4Addr, target: MacAddress, target_ip: Ipv4Addr) -> Self {
        let mut message = Self([0; 28]);
        message.set(0, [0, 1, 8, 0, 6, 4]);
        message.set(6, operation.to_be_bytes());
        message.set(8, sender.0);
        message.set(14, sender_ip.octets());
        message.set(18, target.0);
        message.set(24, target_ip.octets());
        message
    }

    /// Returns a whole frame with this message, padded, from the sender to the target, or to all hosts if the target's hardware
    /// address is not known.
    pub fn frame(&self) -> [u8; 60] {
        let to = if self.target() == MacAddress::default() { MacAddress::BROADCAST } else { self.target() };
        let mut frame = [0; 60];
        frame[..14].copy_from_slice(&Ethernet::new(to, self.sender(), EtherType::ARP).bytes());
        frame[14..42].copy_from_slice(&self.0);
        frame
    }

    /// Returns the operation, [`REQUEST`](Self::REQUEST) or [`REPLY`](Self::REPLY) in most messages.
    pub fn operation(&self) -> u16 {
        u16::from_be_bytes(self.get(6))
    }

    /// Returns the hardware address of the sender.
    pub fn sender(&self) -> MacAddress {
        MacAddress(self.get(8))
    }

    /// Returns the IPv4 address of the sender.
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.get(14).into()
    }

    /// Returns the hardware address of the target, zeros in a request.
    pub fn target(&self) -> MacAddress {
        MacAddress(self.get(18))
    }

    /// Returns the IPv4 address of the target.
    pub fn target_ip(&self) -> Ipv4Addr {
        self.get(24).into()
    }
}
