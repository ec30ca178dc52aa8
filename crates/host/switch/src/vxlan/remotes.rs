//! The other ends of a tunnel, the stations through which they are reached, and the hardware addresses of these.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::stations::RemoteId;

/// Another end of a tunnel.
pub(super) struct Remote {
    pub(super) address: IpAddr,
    /// Place of its next hop.
    hop: usize,
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
    fn new(address: IpAddr) -> Self {
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

/// The other ends, by number.
pub(super) struct Remotes {
    /// By address.
    remotes: Box<[Remote]>,
    /// By address.
    hops: Box<[Hop]>,
}

impl Remotes {
    /// Creates the set of the ends with these addresses, each of which is reached through the station that `next` returns.
    pub(super) fn new(mut addresses: Vec<IpAddr>, next: impl Fn(IpAddr) -> IpAddr) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        let mut hops: Vec<IpAddr> = addresses.iter().map(|&address| next(address)).collect();
        hops.sort_unstable();
        hops.dedup();
        let remote = |&address: &IpAddr| Remote { address, hop: hops.partition_point(|&hop| hop < next(address)) };
        let remotes = addresses.iter().map(remote).collect();
        Self { remotes, hops: hops.into_iter().map(Hop::new).collect() }
    }

    /// Returns the number of the end with this address.
    #[inline]
    pub(super) fn number(&self, address: IpAddr) -> Option<RemoteId> {
        self.remotes.binary_search_by_key(&address, |remote| remote.address).ok().map(|number| number as RemoteId)
    }

    #[inline]
    pub(super) fn get(&self, number: RemoteId) -> Option<&Remote> {
        self.remotes.get(usize::from(number))
    }

    /// Returns the station through which a remote is reached.
    #[inline]
    pub(super) fn hop(&self, remote: &Remote) -> &Hop {
        &self.hops[remote.hop]
    }

    /// Returns the hop with this address.
    pub(super) fn hop_at(&self, address: IpAddr) -> Option<&Hop> {
        self.hops.binary_search_by_key(&address, |hop| hop.address).ok().map(|place| &self.hops[place])
    }

    /// Returns the last remote, and all others.
    pub(super) fn split_last(&self) -> Option<(&Remote, &[Remote])> {
        self.remotes.split_last()
    }

    /// Returns the end, if there is only one.
    #[inline]
    pub(super) fn only(&self) -> Option<&Remote> {
        match &*self.remotes {
            [only] => Some(only),
            _ => None,
        }
    }
}
