//! VXLAN (RFC 7348): makes a port the end of a tunnel. Received frames are decapsulated in place, frames to be
//! sent are encapsulated in their headroom; to the switch it is a port of the inner network.
//!
//! The tunnel connects two IPv4 addresses. Each end answers ARP requests for its own address and requests the
//! other's.

mod arp;
mod outer;
mod queues;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::Mempool;
use ringpass_port::{Error, MacAddress, QueuePair, SoftwareOffload};

/// The registered UDP port.
pub const PORT: u16 = 4789;

/// Length of the outer headers in bytes: Ethernet, IPv4, UDP, VXLAN.
pub const OVERHEAD: usize = 14 + 20 + 8 + 8;

/// Configuration of one end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// VXLAN network identifier (VNI), 24 bits.
    pub vni: u32,
    /// UDP port on which both ends receive.
    pub port: u16,
    /// Address of this end.
    pub local: Ipv4Addr,
    /// Address of the other end, in the same network.
    pub remote: Ipv4Addr,
    /// Hardware address of this end; if `None`, it is derived from the IPv4 address.
    pub mac: Option<MacAddress>,
}

/// Counters over all queues of the port.
#[derive(Default)]
struct Counters {
    received: AtomicU64,
    sent: AtomicU64,
    malformed: AtomicU64,
    foreign: AtomicU64,
    unresolved: AtomicU64,
    tx_drops: AtomicU64,
}

struct State {
    config: Config,
    mac: [u8; 6],
    /// Hardware address of the other end, with [`KNOWN`] set once it is known.
    remote: AtomicU64,
    /// When the address was last requested or learned, as `State::now` returns it; 0 for never.
    last_request: AtomicU64,
    start: Instant,
    counters: Counters,
}

const KNOWN: u64 = 1 << 63;

/// One end of a tunnel, on a port. Clones refer to the same end.
#[derive(Clone)]
pub struct Tunnel(Arc<State>);

impl Tunnel {
    /// Creates the end of a tunnel; an error if the VNI or the addresses are invalid.
    pub fn new(config: Config) -> Result<Self, Error> {
        let Config { vni, local, remote, .. } = config;
        let station =
            |address: Ipv4Addr| !address.is_multicast() && !address.is_unspecified() && !address.is_broadcast();
        let wrong = |why: String| Err(Error::Config(format!("VXLAN: {why}")));
        if vni >= 1 << 24 {
            return wrong(format!("{vni} is not a VNI; those go from 0 to 16777215"));
        }
        if !station(local) || !station(remote) || local == remote {
            return wrong(format!("{local} and {remote} are not the addresses of two stations"));
        }
        let [a, b, c, d] = local.octets();
        let mac = config.mac.map_or([0x02, 0x56, a, b, c, d], |mac| mac.0);
        Ok(Self(Arc::new(State {
            config,
            mac,
            remote: Default::default(),
            last_request: Default::default(),
            start: Instant::now(),
            counters: Default::default(),
        })))
    }

    /// Wraps the port's queues, so that they carry frames of the inner network. Offloads that inner frames
    /// request are done in software before encapsulation.
    pub fn wrap(&self, QueuePair { rx, tx }: QueuePair, pool: &Mempool) -> QueuePair {
        let (rx, tx) = queues::wrap(rx, tx, self.0.clone(), pool);
        QueuePair { rx: Box::new(rx), tx: Box::new(SoftwareOffload::new(tx, Default::default(), pool)) }
    }

    /// Returns the counters with their names.
    pub fn counts(&self) -> [(&'static str, u64); 6] {
        let Counters { received, sent, malformed, foreign, unresolved, tx_drops } = &self.0.counters;
        [
            ("vxlan_received", received),
            ("vxlan_sent", sent),
            ("vxlan_malformed", malformed),
            ("vxlan_foreign", foreign),
            ("vxlan_unresolved", unresolved),
            ("vxlan_tx_drops", tx_drops),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

impl State {
    /// How long an ARP reply stays valid. After that the other end is asked again while there is traffic.
    const ARP_LIFETIME: Duration = Duration::from_secs(30);
    /// Shortest time between two requests.
    const ARP_RETRY_INTERVAL: Duration = Duration::from_secs(1);

    /// Returns the hardware address of the other end.
    fn remote(&self) -> Option<[u8; 6]> {
        let remote = self.remote.load(Ordering::Relaxed);
        let [_, _, mac @ ..] = remote.to_be_bytes();
        (remote & KNOWN != 0).then_some(mac)
    }

    fn learn_remote(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.remote.store(KNOWN | u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Ordering::Relaxed);
        self.last_request.store(self.now(), Ordering::Relaxed);
    }

    /// Returns the milliseconds since the start, counting from 1.
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    /// Returns whether an ARP request is due now. If so, it is recorded as sent.
    fn arp_due(&self, remote: Option<[u8; 6]>) -> bool {
        let pause = if remote.is_some() { Self::ARP_LIFETIME } else { Self::ARP_RETRY_INTERVAL };
        let now = self.now();
        let last_request = self.last_request.load(Ordering::Relaxed);
        let due = last_request == 0 || now.saturating_sub(last_request) >= pause.as_millis() as u64;
        due && self.last_request.compare_exchange(last_request, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
