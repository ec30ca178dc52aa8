//! IP addresses of stations behind other ends, so that questions for them need not go to all ends (ARP and ND suppression: RFC 7432, 10, and
//! RFC 9161).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use ringpass_port::MacAddress;

/// Holder of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) mac: MacAddress,
    /// Set if it is an IPv6 router.
    pub(super) is_router: bool,
    /// Set if it was given since [`Addresses::begin_time`].
    fresh: bool,
}

/// The addresses of one network.
pub(super) struct Addresses {
    holders: RwLock<HashMap<IpAddr, Holder>>,
    /// Most addresses.
    room: usize,
}

impl Addresses {
    /// Creates a table with room for this many.
    pub(super) fn new(room: usize) -> Self {
        Self { holders: RwLock::default(), room }
    }

    /// Adds an address, or gives it to another station. Returns `false` if there is no room.
    pub(super) fn add(&self, ip: IpAddr, mac: MacAddress, is_router: bool) -> bool {
        let mut holders = self.holders.write().unwrap_or_else(PoisonError::into_inner);
        let has_room = holders.len() < self.room || holders.contains_key(&ip);
        if has_room {
            holders.insert(ip, Holder { mac, is_router, fresh: true });
        }
        has_room
    }

    /// Removes an address.
    pub(super) fn remove(&self, ip: IpAddr) {
        self.holders.write().unwrap_or_else(PoisonError::into_inner).remove(&ip);
    }

    /// Begins a time, at whose end addresses that were not added in it are removed.
    pub(super) fn begin_time(&self) {
        let mut holders = self.holders.write().unwrap_or_else(PoisonError::into_inner);
        holders.values_mut().for_each(|holder| holder.fresh = false);
    }

    /// Removes the addresses that were not added since [`Self::begin_time`].
    pub(super) fn end_time(&self) {
        self.holders.write().unwrap_or_else(PoisonError::into_inner).retain(|_, holder| holder.fresh);
    }

    /// Returns all addresses and who has them, in no particular order.
    pub(super) fn entries(&self) -> Vec<(IpAddr, Holder)> {
        let holders = self.holders.read().unwrap_or_else(PoisonError::into_inner);
        holders.iter().map(|(ip, holder)| (*ip, *holder)).collect()
    }

    /// Returns who has an address; `None` also while the table changes, so that no frame waits for that.
    pub(super) fn find(&self, ip: IpAddr) -> Option<Holder> {
        self.holders.try_read().ok()?.get(&ip).copied()
    }
}
