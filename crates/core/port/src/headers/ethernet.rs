//! Ethernet headers (IEEE 802.3, 3.1.1) and VLAN tags (IEEE 802.1Q, 9.6).

use super::header;
use crate::MacAddress;

/// Kind of what follows an Ethernet header or a VLAN tag; values below 1536 are lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// A tag of a customer's VLAN.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// A tag of a provider's VLAN (IEEE 802.1ad).
    pub const PROVIDER_VLAN: Self = Self(0x88a8);
}

header! {
    /// An Ethernet header without VLAN tag: destination, source, type.
    Ethernet, 14, |_| true
}

impl Ethernet {
    /// Creates a header.
    #[inline]
    pub fn new(destination: MacAddress, source: MacAddress, ether_type: EtherType) -> Self {
        let mut header = Self([0; 14]);
        header.set_destination(destination);
        header.set_source(source);
        header.set_ether_type(ether_type);
        header
    }

    /// Returns the address of the receiver.
    #[inline]
    pub fn destination(&self) -> MacAddress {
        MacAddress(self.get(0))
    }

    /// Changes the address of the receiver.
    #[inline]
    pub fn set_destination(&mut self, address: MacAddress) {
        self.set(0, address.0);
    }

    /// Returns the address of the sender.
    #[inline]
    pub fn source(&self) -> MacAddress {
        MacAddress(self.get(6))
    }

    /// Changes the address of the sender.
    #[inline]
    pub fn set_source(&mut self, address: MacAddress) {
        self.set(6, address.0);
    }

    /// Returns what follows the header; [`EtherType::VLAN`] if it is a tag.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(u16::from_be_bytes(self.get(12)))
    }

    /// Changes what follows the header.
    #[inline]
    pub fn set_ether_type(&mut self, ether_type: EtherType) {
        self.set(12, ether_type.0.to_be_bytes());
    }
}

header! {
    /// A VLAN tag, from its own fields to the type of what follows it. The first one begins at byte 14 of a frame, behind
    /// the type [`EtherType::VLAN`].
    Vlan, 4, |_| true
}

impl Vlan {
    /// Creates a tag. Only the lower 12 bits of the identifier and the lower 3 of the priority are used.
    #[inline]
    pub fn new(id: u16, priority: u8, ether_type: EtherType) -> Self {
        let mut tag = Self([0; 4]);
        tag.set(0, (id & 0xfff | u16::from(priority & 7) << 13).to_be_bytes());
        tag.set(2, ether_type.0.to_be_bytes());
        tag
    }

    /// Returns the identifier of the VLAN, 0 to 4095.
    #[inline]
    pub fn id(&self) -> u16 {
        u16::from_be_bytes(self.get(0)) & 0xfff
    }

    /// Changes the identifier of the VLAN, of which the lower 12 bits are used.
    #[inline]
    pub fn set_id(&mut self, id: u16) {
        let rest = u16::from_be_bytes(self.get(0)) & 0xf000;
        self.set(0, (rest | id & 0xfff).to_be_bytes());
    }

    /// Returns the priority, 0 to 7.
    #[inline]
    pub fn priority(&self) -> u8 {
        self.0[0] >> 5
    }

    /// Returns what follows the tag.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(u16::from_be_bytes(self.get(2)))
    }
}
