//! MAC addresses.

/// A MAC address, in transmission order.
///
/// ```
/// use ringpass_port::MacAddress;
///
/// assert_eq!("02:00:00:00:00:01".parse(), Ok(MacAddress([2, 0, 0, 0, 0, 1])));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The address of all stations.
    pub const BROADCAST: Self = Self([0xff; 6]);
}
