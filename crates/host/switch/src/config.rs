//! Configuration of a switch and its ports.

use std::time::Duration;

use ringpass_port::MacAddress;

use crate::Vlans;

/// Largest number of ports of a switch: a set of ports is one 64-bit word.
pub const MAX_PORTS: usize = 64;

/// Configuration of the whole switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Time after which a silent station is removed from the table: 1 s to 9 hours.
    pub ageing: Duration,
    /// Number of stations that the table has room for.
    pub table: usize,
    /// Flooded frames per second allowed from each port; 0 for no limit.
    pub flood: u64,
    /// Moves between ports that a station may make within a second.
    pub moves: u32,
    /// Whether frames with a group address or zeros as their source are forwarded, without learning from them,
    /// as VALE does. Otherwise they are dropped, as bridges do.
    pub any_source: bool,
}

impl Default for Config {
    /// The default ageing time is that of IEEE 802.1D-2004, table 7-5.
    fn default() -> Self {
        Self { ageing: Duration::from_secs(300), table: 8192, flood: 100_000, moves: 5, any_source: false }
    }
}

/// Configuration of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPolicy {
    /// Name of the port in errors.
    pub name: String,
    /// The port's VLANs.
    pub vlans: Vlans,
    /// Isolation group: ports of the same group cannot send to each other.
    pub isolation: Option<u16>,
    /// The only stations that may send from this port; empty for all.
    pub sources: Vec<MacAddress>,
    /// Static stations of this port, each with its VLAN; `None` means the VLAN of untagged frames.
    pub stations: Vec<(MacAddress, Option<u16>)>,
    /// Limit of flooded frames per second, instead of the switch's.
    pub flood: Option<u64>,
    /// Whether this is the port of a guest that lends buffers, into which other ports receive. Packets in lent
    /// buffers are passed to such ports as they are, and to all others as copies.
    pub lends: bool,
    /// Set if no stations are learned at this port: those behind it are [placed](crate::Placement) by a control plane.
    pub given: bool,
}
