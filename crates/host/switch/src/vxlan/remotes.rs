//! The other ends of a tunnel, the stations through which they are reached, and the hardware addresses of these.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::{ArcSwap, Cache};

use super::stations::RemoteId;

/// Another end of a tunnel.
#[derive(Clone)]
pub(super) struct Remote {
    pub(super) address: IpAddr,
    /// The station through which it is reached.
    pub(super) hop: Arc<Hop>,
}

/// A station of this end's network through which remotes are reached: a remote itself, or a router.
pub(super) struct Hop {
    pub(super) address: IpAddr,
    /// Its hardware address, with [`KNOWN`] set once it is known.
    mac: AtomicU64,
    /// When the address was last requested or learned, in milliseconds since the start, counted from 1; 0 for never.
    asked: AtomicU64,
}

const KNOWN: u64 = 1 << 63;

/// How long an answer stays valid. After that the hop is asked again while there is traffic.
const LIFETIME: Duration = Duration::from_secs(30);
/// Shortest time between two requests.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Hop {
    pub(super) fn new(address: IpAddr) -> Self {
        Self { address, mac: AtomicU64::new(0), asked: AtomicU64::new(0) }
    }

    /// Returns its hardware address.
    #[inline]
    pub(super) fn mac(&self) -> Option<[u8; 6]> {
        let mac = self.mac.load(Relaxed);
        let [_, _, bytes @ ..] = mac.to_be_bytes();
        (mac & KNOWN != 0).then_some(bytes)
    }

    /// Learns its hardware address, at this time since the start.
    pub(super) fn learn(&self, [a, b, c, d, e, f]: [u8; 6], now: Duration) {
        self.mac.store(KNOWN | u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Relaxed);
        self.asked.store(stamp(now), Relaxed);
    }

    /// Returns whether a request is due. If so, it is recorded as sent.
    #[inline]
    pub(super) fn request_is_due(&self, now: Duration) -> bool {
        let asked = self.asked.load(Relaxed);
        let pause = if self.mac.load(Relaxed) & KNOWN != 0 { LIFETIME } else { RETRY_INTERVAL };
        let due = asked == 0 || stamp(now).saturating_sub(asked) >= pause.as_millis() as u64;
        due && self.asked.compare_exchange(asked, stamp(now), Relaxed, Relaxed).is_ok()
    }
}

fn stamp(now: Duration) -> u64 {
    now.as_millis() as u64 + 1
}

/// The other ends, by number, and which of them get copies. A set never changes; another one takes its place.
pub(super) struct Remotes {
    /// Numbers without an end have none.
    remotes: Box<[Option<Remote>]>,
    /// Numbers, by address.
    numbers: Box<[(IpAddr, RemoteId)]>,
    /// By address.
    hops: Box<[Arc<Hop>]>,
    /// The ends to which frames for all go, by place of the network.
    floods: Box<[Arc<[RemoteId]>]>,
}

impl Remotes {
    /// Creates a set. Remotes with the same hop share it.
    pub(super) fn new(remotes: Vec<Option<Remote>>, floods: Vec<Arc<[RemoteId]>>) -> Self {
        let present = || remotes.iter().enumerate().filter_map(|(number, remote)| Some((number, remote.as_ref()?)));
        let mut numbers: Vec<_> = present().map(|(number, remote)| (remote.address, number as RemoteId)).collect();
        numbers.sort_unstable();
        let mut hops: Vec<_> = present().map(|(_, remote)| remote.hop.clone()).collect();
        hops.sort_unstable_by_key(|hop| hop.address);
        hops.dedup_by_key(|hop| hop.address);
        Self { remotes: remotes.into(), numbers: numbers.into(), hops: hops.into(), floods: floods.into() }
    }

    /// Creates the set of the ends with these addresses, each of which is reached through the station that `next` returns, and all of which get
    /// copies of frames for all in each network.
    pub(super) fn fixed(mut addresses: Vec<IpAddr>, networks: usize, next: impl Fn(IpAddr) -> IpAddr) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        let mut hops: Vec<Arc<Hop>> = Vec::new();
        let mut remote = |address: IpAddr| {
            let next = next(address);
            let place = hops.partition_point(|hop| hop.address < next);
            if hops.get(place).is_none_or(|hop| hop.address != next) {
                hops.insert(place, Arc::new(Hop::new(next)));
            }
            Some(Remote { address, hop: hops[place].clone() })
        };
        let remotes: Vec<_> = addresses.into_iter().map(&mut remote).collect();
        let all: Arc<[RemoteId]> = (0..remotes.len() as RemoteId).collect();
        Self::new(remotes, vec![all; networks])
    }

    /// Returns the number of the end with this address.
    #[inline]
    pub(super) fn number(&self, address: IpAddr) -> Option<RemoteId> {
        let place = self.numbers.binary_search_by_key(&address, |&(address, _)| address).ok()?;
        Some(self.numbers[place].1)
    }

    #[inline]
    pub(super) fn get(&self, number: RemoteId) -> Option<&Remote> {
        self.remotes.get(usize::from(number))?.as_ref()
    }

    /// Returns all ends by number, `None` for numbers without one.
    pub(super) fn all(&self) -> impl Iterator<Item = Option<&Remote>> {
        self.remotes.iter().map(Option::as_ref)
    }

    /// Returns the hop with this address.
    pub(super) fn hop_at(&self, address: IpAddr) -> Option<&Arc<Hop>> {
        self.hops.binary_search_by_key(&address, |hop| hop.address).ok().map(|place| &self.hops[place])
    }

    /// Returns the numbers of the ends to which frames for all of a network go.
    #[inline]
    pub(super) fn floods(&self, network: usize) -> &[RemoteId] {
        self.floods.get(network).map_or(&[], |list| list)
    }
}

/// A queue's view of the set that is in force.
pub(super) type View = Cache<Arc<ArcSwap<Remotes>>, Arc<Remotes>>;
