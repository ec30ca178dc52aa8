//! The other ends of a tunnel, and their hardware addresses.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::stations::RemoteId;

/// Another end of a tunnel.
pub(super) struct Remote {
    pub(super) address: Ipv4Addr,
    /// Its hardware address, with [`KNOWN`] set once it is known.
    mac: AtomicU64,
    /// When the address was last requested or learned, in milliseconds since the start, counted from 1; 0 for never.
    asked: AtomicU64,
}

const KNOWN: u64 = 1 << 63;

/// How long an ARP reply stays valid. After that the other end is asked again while there is traffic.
const ARP_LIFETIME: Duration = Duration::from_secs(30);
/// Shortest time between two requests.
const ARP_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Remote {
    fn new(address: Ipv4Addr) -> Self {
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

    /// Returns whether an ARP request is due. If so, it is recorded as sent.
    #[inline]
    pub(super) fn request_is_due(&self, now: Duration) -> bool {
        let asked = self.asked.load(Relaxed);
        let pause = if self.mac.load(Relaxed) & KNOWN != 0 { ARP_LIFETIME } else { ARP_RETRY_INTERVAL };
        let due = asked == 0 || stamp(now).saturating_sub(asked) >= pause.as_millis() as u64;
        due && self.asked.compare_exchange(asked, stamp(now), Relaxed, Relaxed).is_ok()
    }
}

fn stamp(now: Duration) -> u64 {
    now.as_millis() as u64 + 1
}

/// The other ends, by number.
pub(super) struct Remotes(Box<[Remote]>);

impl Remotes {
    /// Creates the set of the ends with these addresses.
    pub(super) fn new(mut addresses: Vec<Ipv4Addr>) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        Self(addresses.into_iter().map(Remote::new).collect())
    }

    /// Returns the number of the end with this address.
    #[inline]
    pub(super) fn number(&self, address: Ipv4Addr) -> Option<RemoteId> {
        self.0.binary_search_by_key(&address, |remote| remote.address).ok().map(|number| number as RemoteId)
    }

    #[inline]
    pub(super) fn get(&self, number: RemoteId) -> Option<&Remote> {
        self.0.get(usize::from(number))
    }

    /// Returns the last remote, and all others.
    pub(super) fn split_last(&self) -> Option<(&Remote, &[Remote])> {
        self.0.split_last()
    }

    /// Returns the end, if there is only one.
    #[inline]
    pub(super) fn only(&self) -> Option<&Remote> {
        match &*self.0 {
            [only] => Some(only),
            _ => None,
        }
    }
}
