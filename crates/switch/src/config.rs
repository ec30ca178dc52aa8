//! What a switch and its ports are told.

use std::time::Duration;

use ringpass_port::MacAddress;

use crate::Vlans;

/// Ports that a switch has at most: sets of them are words.
pub const MAX_PORTS: usize = 64;

/// What holds for the whole switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// After how long a silent station is forgotten: up to 9 hours.
    pub ageing: Duration,
    /// Stations that the table has room for.
    pub table: usize,
    /// Frames a second that a port may have flooded; 0 for no limit.
    pub flood: u64,
    /// Moves that a station may make within a second.
    pub moves: u32,
    /// Frames from a group's address, or from nobody's, are forwarded, and nothing is learned of them, as VALE does; otherwise
    /// they are dropped, as by bridges.
    pub any_source: bool,
}

impl Default for Config {
    /// Ageing as in IEEE 802.1D-2004, table 7-5.
    fn default() -> Self {
        Self { ageing: Duration::from_secs(300), table: 8192, flood: 100_000, moves: 5, any_source: false }
    }
}

/// What holds for one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// What it is called in errors.
    pub name: String,
    /// Its VLANs.
    pub vlans: Vlans,
    /// Ports of the same group do not talk to each other.
    pub isolation: Option<u16>,
    /// The only stations that may send from here; all, if empty.
    pub sources: Vec<MacAddress>,
    /// Stations that are here for good, in a VLAN or in that of frames without a tag.
    pub stations: Vec<(MacAddress, Option<u16>)>,
    /// Instead of the switch's own.
    pub flood: Option<u64>,
    /// Other ports receive into its guest's buffers: packets in those go to it as they are, to others as copies.
    pub lends: bool,
}
