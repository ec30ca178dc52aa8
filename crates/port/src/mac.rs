//! MAC addresses.

/// A MAC address, in the order of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddress(pub [u8; 6]);
