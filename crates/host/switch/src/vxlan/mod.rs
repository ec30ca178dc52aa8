//! VXLAN (RFC 7348): makes a port the end of a tunnel. Received frames are decapsulated in place, frames to be
//! sent are encapsulated in their headroom; to the switch it is a port of the inner network.
//!
//! The tunnel connects an IPv4 address with one or more remote ones, in one network. Each end answers ARP requests for its own
//! address and requests those of the others. With several remotes, each station's own is learned from the frames that it sends;
//! a frame to a group, or to a station that is not known, goes to all of them. What comes out of the tunnel never goes back into it,
//! as no frame leaves a switch by the port where it came in, so remotes need no spanning tree as long as each has all others.

mod arp;
mod networks;
mod outer;
mod queues;
mod remotes;
mod stations;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ringpass_memory::{Flags, Mempool};
use ringpass_port::{Error, MacAddress, QueuePair, SoftwareOffload};

pub use networks::Networks;
use remotes::Remotes;

/// The registered UDP port.
pub const PORT: u16 = 4789;

/// Length of the outer headers in bytes: Ethernet, IPv4, UDP, VXLAN.
pub const OVERHEAD: usize = 14 + 20 + 8 + 8;

/// Configuration of one end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The networks that go through it.
    pub networks: Networks,
    /// UDP port on which both ends receive.
    pub port: u16,
    /// Address of this end.
    pub local: Ipv4Addr,
    /// Addresses of the other ends, in the same network: 1 to [`MAX_REMOTES`].
    pub remotes: Vec<Ipv4Addr>,
    /// Stations of each network that there is room for, if there are several remotes. When a place is taken, remotes with fewer
    /// stations come first.
    pub stations: usize,
    /// Hardware address of this end; if `None`, it is derived from the IPv4 address.
    pub mac: Option<MacAddress>,
}

/// Most remote ends of a tunnel.
pub const MAX_REMOTES: usize = 4096;
/// Most stations that a tunnel may have room for, in all networks together.
pub const MAX_STATIONS: usize = 1 << 24;

/// Counters over all queues of the port.
#[derive(Default)]
struct Counters {
    received: AtomicU64,
    sent: AtomicU64,
    /// Frames that were sent in more copies than one, without the first.
    copies: AtomicU64,
    malformed: AtomicU64,
    foreign: AtomicU64,
    unresolved: AtomicU64,
    tx_drops: AtomicU64,
}

struct State {
    config: Config,
    mac: [u8; 6],
    remotes: Remotes,
    networks: networks::Table,
    start: Instant,
    counters: Counters,
}

/// One end of a tunnel, on a port. Clones refer to the same end.
#[derive(Clone)]
pub struct Tunnel(Arc<State>);

impl Tunnel {
    /// Creates the end of a tunnel.
    ///
    /// # Errors
    /// If the VNI, an address or a number is invalid.
    pub fn new(config: Config) -> Result<Self, Error> {
        let Config { local, ref networks, ref remotes, stations, .. } = config;
        let host = |address: Ipv4Addr| !address.is_multicast() && !address.is_unspecified() && !address.is_broadcast();
        let wrong = |why: String| Err(Error::Config(format!("VXLAN: {why}")));
        if !(1..=MAX_REMOTES).contains(&remotes.len()) {
            return wrong(format!("a tunnel has 1 to {MAX_REMOTES} remotes, not {}", remotes.len()));
        }
        if let Some(remote) = remotes.iter().find(|&&remote| !host(local) || !host(remote) || local == remote) {
            return wrong(format!("{local} and {remote} are not the addresses of two stations"));
        }
        if !(1..=MAX_STATIONS).contains(&stations) {
            return wrong(format!("there is room for 1 to {MAX_STATIONS} stations, not {stations}"));
        }
        let [a, b, c, d] = local.octets();
        let mac = config.mac.map_or([0x02, 0x56, a, b, c, d], |mac| mac.0);
        let remotes = Remotes::new(remotes.clone());
        let networks = networks::Table::new(networks, remotes.only().is_none().then_some(stations))?;
        let counters = Counters::default();
        Ok(Self(Arc::new(State { config, mac, remotes, networks, start: Instant::now(), counters })))
    }

    /// Wraps the port's queues, so that they carry frames of the inner network. Offloads that inner frames
    /// request are done in software before encapsulation.
    pub fn wrap(&self, QueuePair { rx, tx }: QueuePair, pool: &Mempool) -> QueuePair {
        let (rx, tx) = queues::wrap(rx, tx, self.0.clone(), pool);
        // Tags that say which network it is are not put into frames.
        let outside = if self.0.networks.is_tagged() { Flags::VLAN } else { Flags::default() };
        QueuePair { rx: Box::new(rx), tx: Box::new(SoftwareOffload::new(tx, outside, pool)) }
    }

    /// Returns the counters with their names.
    pub fn counts(&self) -> [(&'static str, u64); 7] {
        let Counters { received, sent, copies, malformed, foreign, unresolved, tx_drops } = &self.0.counters;
        [
            ("vxlan_received", received),
            ("vxlan_sent", sent),
            ("vxlan_copies", copies),
            ("vxlan_malformed", malformed),
            ("vxlan_foreign", foreign),
            ("vxlan_unresolved", unresolved),
            ("vxlan_tx_drops", tx_drops),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}
