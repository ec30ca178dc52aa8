//! VXLAN (RFC 7348): a port as the end of a tunnel. What it receives is taken out of its outer headers in place, what it
//! sends gets them in the headroom; to the switch it is a port of the inner network.
//!
//! The tunnel is between two addresses of IPv4. The end answers ARP for its own address and asks for the other's.

mod arp;
mod outer;
mod queues;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::Mempool;
use ringpass_port::{Error, MacAddress, Queues, Software};

/// The registered port of UDP.
pub const PORT: u16 = 4789;

/// Bytes that the outer headers take: Ethernet, IPv4, UDP, VXLAN.
pub const OVERHEAD: usize = 14 + 20 + 8 + 8;

/// One end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The network's number, of 24 bits.
    pub vni: u32,
    /// Where both ends receive.
    pub port: u16,
    /// Address of this end.
    pub local: Ipv4Addr,
    /// Address of the other end, in the same network.
    pub remote: Ipv4Addr,
    /// Hardware address of this end; made from its address if not given.
    pub mac: Option<MacAddress>,
}

/// What is counted, over all queues.
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
    /// Hardware address of the other end, with [`KNOWN`] set once there is one.
    remote: AtomicU64,
    /// When it was last asked for or learned; 0 for never.
    asked: AtomicU64,
    start: Instant,
    counters: Counters,
}

const KNOWN: u64 = 1 << 63;

/// One end of a tunnel, on a port. Clones are the same end.
#[derive(Clone)]
pub struct Tunnel(Arc<State>);

impl Tunnel {
    /// Checks the addresses.
    pub fn new(config: Config) -> Result<Self, Error> {
        let Config { vni, local, remote, .. } = config;
        let station =
            |address: Ipv4Addr| !address.is_multicast() && !address.is_unspecified() && !address.is_broadcast();
        let wrong = |why: String| Err(Error::Other(format!("VXLAN: {why}")));
        if vni >= 1 << 24 {
            return wrong(format!("{vni} is no VNI; those go from 0 to 16777215"));
        }
        if !station(local) || !station(remote) || local == remote {
            return wrong(format!("{local} and {remote} are not the addresses of two stations"));
        }
        let [a, b, c, d] = local.octets();
        let mac = config.mac.map_or([0x02, 0x56, a, b, c, d], |mac| mac.0);
        let (remote, asked, counters) = Default::default();
        Ok(Self(Arc::new(State { config, mac, remote, asked, start: Instant::now(), counters })))
    }

    /// The queues of the port, as those of the inner network. Offloads that the inner frames ask for are done before.
    pub fn wrap(&self, Queues { rx, tx }: Queues, pool: &Mempool) -> Queues {
        let (rx, tx) = queues::wrap(rx, tx, self.0.clone(), pool);
        Queues { rx: Box::new(rx), tx: Box::new(Software::new(tx, Default::default(), pool)) }
    }

    /// Counters, by name.
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
    /// How long an answer is good for; then the other end is asked again while traffic goes on.
    const FRESH: Duration = Duration::from_secs(30);
    /// It is not asked more often.
    const PAUSE: Duration = Duration::from_secs(1);

    /// Hardware address of the other end.
    fn remote(&self) -> Option<[u8; 6]> {
        let remote = self.remote.load(Ordering::Relaxed);
        let [_, _, mac @ ..] = remote.to_be_bytes();
        (remote & KNOWN != 0).then_some(mac)
    }

    fn learn_remote(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.remote.store(KNOWN | u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Ordering::Relaxed);
        self.asked.store(self.now(), Ordering::Relaxed);
    }

    /// Milliseconds since the start, from 1.
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    /// Whether the other end is to be asked for its address now, which is noted as done.
    fn must_ask(&self, remote: Option<[u8; 6]>) -> bool {
        let pause = if remote.is_some() { Self::FRESH } else { Self::PAUSE };
        let now = self.now();
        let asked = self.asked.load(Ordering::Relaxed);
        let due = asked == 0 || now.saturating_sub(asked) >= pause.as_millis() as u64;
        due && self.asked.compare_exchange(asked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
