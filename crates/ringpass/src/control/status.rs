//! What a program tells of itself.

use std::collections::BTreeMap;
use std::fmt;

use ringpass_port::{Link, MacAddress, Port, RingStatus, State, Stats};
use serde::{Deserialize, Serialize};

/// State and counters of a program's ports, switches and workers.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Seconds since the start of the run.
    pub seconds: f64,
    /// Queues of each port.
    pub queues: usize,
    /// MTU of each port, in bytes.
    pub mtu: usize,
    /// Offloads of each port, as a list such as `checksum,tso`, or `none`.
    pub offloads: String,
    /// Number of ports that may still be added.
    pub room: usize,
    /// Its ports.
    pub ports: Vec<PortStatus>,
    /// Its switches, if it has any.
    pub switches: Vec<SwitchStatus>,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
    /// Packet buffers of the pool.
    pub buffers: u64,
    /// Those of them that are in use, in caches of queues among others.
    pub buffers_in_use: u64,
    /// State of its software cards, if it has any that can be stopped.
    #[serde(default)]
    pub cards: Option<CardsState>,
}

/// Whether software cards work.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardsState {
    /// They do.
    Running,
    /// They handle one descriptor when they are told to ([`Request::Step`](super::Request::Step)).
    Stopped,
}

/// Another end of a tunnel.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndStatus {
    /// Its IP address.
    pub address: String,
    /// VXLAN network identifiers of the networks of which it gets frames for all.
    pub networks: Vec<u32>,
    /// Number of stations behind it.
    pub stations: u64,
    /// Set if the hardware address is known through which it is reached, as it is once there was something to send.
    pub resolved: bool,
}

impl fmt::Display for EndStatus {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { address, networks, stations, resolved } = self;
        let resolved = if *resolved { "" } else { ", its hardware address not known" };
        write!(f, "end {address}: {stations} stations, copies for all of {} networks{resolved}", networks.len())
    }
}

/// A port.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortStatus {
    /// Its name.
    pub name: String,
    /// Its address, such as `tap:a`.
    pub address: String,
    /// The switch that it is a port of.
    pub switch: Option<String>,
    /// `running`, `finished` (all input has been delivered) or `gone`.
    pub state: String,
    /// Why it is gone.
    pub why: Option<String>,
    /// MAC address.
    pub mac: String,
    /// Whether it has a link.
    pub link: bool,
    /// Speed of the link in Mbit/s; 0 if that is not known.
    pub mbps: u32,
    /// Counters since the start.
    #[serde(flatten)]
    pub stats: Stats,
    /// Counters of each queue, if they are known.
    pub queues: Vec<Stats>,
    /// Rings of descriptors, as they are at the moment, if the port has any and can look at them.
    #[serde(default)]
    pub rings: Vec<RingStatus>,
    /// The other ends of a tunnel, if the port is one.
    #[serde(default)]
    pub ends: Vec<EndStatus>,
    /// Further counters of this kind of port and of its switch, by name.
    pub extended: BTreeMap<String, u64>,
}

impl PortStatus {
    /// Describes a port. Its name is its address, and it belongs to no switch.
    pub fn of(port: &mut dyn Port) -> Self {
        let (state, why) = match port.state() {
            State::Running => ("running", None),
            State::Finished => ("finished", None),
            State::Gone(why) => ("gone", Some(why)),
        };
        let Link { up, mbps } = if why.is_none() { port.link() } else { Link::default() };
        let MacAddress(mac) = port.mac();
        Self {
            name: port.name().to_owned(),
            address: port.name().to_owned(),
            switch: None,
            state: state.to_owned(),
            why,
            mac: MacAddress(mac).to_string(),
            link: up,
            mbps,
            stats: port.stats(),
            queues: port.queue_stats(),
            rings: port.rings(),
            ends: Vec::new(),
            extended: port.extended().into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
        }
    }
}

/// A switch.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Its name.
    pub name: String,
    /// Names of its ports.
    pub ports: Vec<String>,
    /// Number of stations in its table.
    pub stations: u64,
    /// Whether it has ended.
    pub ended: bool,
}

/// A worker.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Packets that it has moved.
    pub moved: u64,
    /// Packets that it has dropped.
    pub dropped: u64,
    /// Time stamp counter cycles of its rounds that moved packets.
    pub busy_cycles: u64,
    /// Rounds by the number of packets that they moved: 0, 1, 2 to 3, 4 to 7, and so on, 256 and more.
    pub rounds: Vec<u64>,
    /// How often it has slept.
    pub sleeps: u64,
}
