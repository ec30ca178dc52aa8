//! VXLAN (RFC 7348): makes a port the end of a tunnel. Received frames are decapsulated in place, frames to be
//! sent are encapsulated in their headroom; to the switch it is a port of the inner network.
//!
//! The tunnel connects an IPv4 or IPv6 address with one or more remote ones, in the same network or behind a router. Each end
//! answers questions for its own hardware address, and asks for those of the others or of the router. With several remotes,
//! each station's own is learned from the frames that it sends, or [given](Tunnel::change) by a control plane; a frame to a group, or to
//! a station that is not known, goes to all of them. What comes out of the tunnel never goes back into it, as no frame leaves a switch by the port where it came in, so
//! remotes need no spanning tree as long as each has all others.

mod addresses;
mod arp;
mod control;
mod nd;
mod neighbours;
mod networks;
mod outer;
mod queues;
mod remotes;
mod replies;
mod stations;
mod too_big;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use ringpass_memory::{Flags, Mempool};
use ringpass_port::{Error, MacAddress, QueuePair, SoftwareOffload};

use crate::journal::Journal;
use control::Given;
pub use control::{Address, Changes, EndState, Station};
pub use neighbours::announcement;
pub use networks::Networks;
use remotes::Remotes;

/// The registered UDP port.
pub const PORT: u16 = 4789;

/// Length of the outer headers in bytes: Ethernet, IPv4, UDP, VXLAN.
pub const OVERHEAD: usize = 14 + 20 + 8 + 8;
/// Length of the outer headers in bytes: Ethernet, IPv6, UDP, VXLAN.
pub const OVERHEAD_V6: usize = 14 + 40 + 8 + 8;

/// Configuration of one end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The networks that go through it.
    pub networks: Networks,
    /// UDP port on which both ends receive.
    pub port: u16,
    /// Address of this end.
    pub local: IpAddr,
    /// Bits of `local` that all addresses of its network share; if `None`, all remotes are in it.
    pub prefix: Option<u8>,
    /// Router in that network through which remotes elsewhere are reached.
    pub gateway: Option<IpAddr>,
    /// The other ends.
    pub ends: Ends,
    /// Stations of each network that there is room for, if there may be several remotes. When a place is taken, remotes with fewer
    /// stations come first.
    pub stations: usize,
    /// Hardware address of this end; if `None`, it is derived from the last bytes of its address.
    pub mac: Option<MacAddress>,
}

impl Config {
    /// Checks the address of another end or of a router.
    fn check_other(&self, other: IpAddr) -> Result<(), Error> {
        let local = self.local;
        if !is_host(local) || !is_host(other) || local == other || local.is_ipv4() != other.is_ipv4() {
            return Err(Error::Config(format!("VXLAN: {local} and {other} are not the addresses of two stations")));
        }
        Ok(())
    }

    /// Returns whether an address is in this end's network.
    fn is_near(&self, address: IpAddr) -> bool {
        self.prefix.is_none_or(|prefix| shared_bits(self.local, address) >= u32::from(prefix))
    }

    /// Returns the station through which a remote is reached.
    fn next_hop(&self, remote: IpAddr) -> Result<IpAddr, Error> {
        self.check_other(remote)?;
        if self.is_near(remote) {
            return Ok(remote);
        }
        self.gateway.ok_or_else(|| {
            let local = self.local;
            let why = format!("{remote} is outside of the network of {local}; say through which gateway it is reached");
            Error::Config(format!("VXLAN: {why}"))
        })
    }
}

/// Where the other ends of a tunnel are known from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// They have these addresses, of the same family as the tunnel's own: 1 to [`MAX_REMOTES`]. Stations behind them are learned from frames.
    Fixed(Vec<IpAddr>),
    /// They are given by [`Tunnel::change`], and the stations behind them too: none is learned from frames.
    Given,
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
    /// Questions for hardware addresses that were answered here.
    answered: AtomicU64,
    /// Frames that did not fit with their outer headers.
    too_long: AtomicU64,
    tx_drops: AtomicU64,
}

struct State {
    config: Config,
    mac: [u8; 6],
    /// Those that are in force. Queues follow at their next burst.
    remotes: Arc<ArcSwap<Remotes>>,
    /// The ends that a control plane has given.
    given: Mutex<Given>,
    /// Present if somebody reads what stations of this side say of themselves.
    heard: OnceLock<Journal<Address>>,
    networks: networks::Table,
    start: Instant,
    counters: Counters,
    /// Set once it was said that a frame does not fit.
    said_too_long: AtomicBool,
}

/// Returns whether an address may be that of a station.
fn is_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !is_broadcast
}

/// Returns how many of their first bits two addresses of one family share.
fn shared_bits(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}

/// Returns a hardware address made from the last bytes of an address.
fn derived(address: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => (address.to_bits() as u32).to_be_bytes(),
    };
    [0x02, 0x56, a, b, c, d]
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
        let Config { local, prefix, gateway, ref networks, ref ends, stations, .. } = config;
        let wrong = |why: String| Err(Error::Config(format!("VXLAN: {why}")));
        let remotes = match ends {
            Ends::Fixed(remotes) if !(1..=MAX_REMOTES).contains(&remotes.len()) => {
                return wrong(format!("a tunnel has 1 to {MAX_REMOTES} remotes, not {}", remotes.len()));
            }
            Ends::Fixed(remotes) => &remotes[..],
            Ends::Given => &[],
        };
        let bits = if local.is_ipv4() { 32 } else { 128 };
        if prefix.is_some_and(|prefix| prefix > bits) {
            return wrong(format!("{local} has no more than {bits} bits"));
        }
        for &other in remotes.iter().chain(&gateway) {
            config.check_other(other)?;
        }
        match gateway {
            Some(_) if prefix.is_none() => {
                return wrong(format!(
                    "a gateway is for remotes outside of the network of {local}; say its prefix length"
                ));
            }
            Some(gateway) if !config.is_near(gateway) => {
                return wrong(format!("the gateway {gateway} is outside of the network of {local}"));
            }
            _ => {}
        }
        for &remote in remotes {
            config.next_hop(remote)?;
        }
        if !(1..=MAX_STATIONS).contains(&stations) {
            return wrong(format!("there is room for 1 to {MAX_STATIONS} stations, not {stations}"));
        }
        let mac = config.mac.map_or_else(|| derived(local), |mac| mac.0);
        let learns = *ends != Ends::Given;
        let networks = networks::Table::new(networks, (!learns || remotes.len() > 1).then_some(stations), learns)?;
        let count = networks.all().len();
        let next = |remote| config.next_hop(remote).unwrap_or(remote);
        let remotes = Arc::new(ArcSwap::from_pointee(Remotes::fixed(remotes.to_vec(), count, next)));
        let state = State {
            config,
            mac,
            remotes,
            given: Mutex::new(Given::new(count)),
            heard: OnceLock::new(),
            networks,
            start: Instant::now(),
            counters: Counters::default(),
            said_too_long: AtomicBool::new(false),
        };
        Ok(Self(Arc::new(state)))
    }

    /// Wraps queues of a port with this MTU in bytes, so that they carry frames of the inner network. Offloads that inner frames
    /// request are done in software before encapsulation. A frame that does not fit with its outer headers is dropped, and its sender is told by
    /// ICMP which size of packets fits, if the packet must not be cut (RFC 1191; RFC 8201).
    pub fn wrap(&self, QueuePair { rx, tx }: QueuePair, pool: &Mempool, mtu: usize) -> QueuePair {
        let (rx, tx) = queues::wrap(rx, tx, self.0.clone(), pool, mtu);
        // Tags that say which network it is are not put into frames.
        let outside = if self.0.networks.is_tagged() { Flags::VLAN } else { Flags::default() };
        QueuePair { rx: Box::new(rx), tx: Box::new(SoftwareOffload::new(tx, outside, pool)) }
    }

    /// Returns the counters with their names.
    pub fn counts(&self) -> [(&'static str, u64); 9] {
        let Counters { received, sent, copies, malformed, foreign, unresolved, answered, too_long, tx_drops } =
            &self.0.counters;
        [
            ("vxlan_received", received),
            ("vxlan_sent", sent),
            ("vxlan_copies", copies),
            ("vxlan_malformed", malformed),
            ("vxlan_foreign", foreign),
            ("vxlan_unresolved", unresolved),
            ("vxlan_answered", answered),
            ("vxlan_too_long", too_long),
            ("vxlan_tx_drops", tx_drops),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}
