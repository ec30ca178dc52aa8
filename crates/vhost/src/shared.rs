//! What the port, its queues and the session share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use ringpass_memory::Lending;
use ringpass_peer::Kick;
use ringpass_port::{Error, Offloads};

use crate::agreed::{SHORTEST, Takes};
use crate::announce::Announcement;
use crate::counters::AllCounters;
use crate::fault::Fault;
use crate::lend::Lends;
use crate::vring::Vring;

pub(crate) struct Shared {
    /// As the guest numbers them: 0, 2, … receive there, 1, 3, … send.
    pub(crate) vrings: Arc<[Vring]>,
    /// By pair: what cards receive into.
    pub(crate) lendings: Box<[Arc<Lending>]>,
    /// Somebody means to borrow.
    pub(crate) lends: AtomicBool,
    /// By Rx queue: what it sleeps on. The guest kicks it, and its session when something has changed.
    pub(crate) kicks: Box<[Kick]>,
    /// By Tx queue: which pair of the guest's it sends to, or [`NOWHERE`].
    routes: Box<[AtomicUsize]>,
    /// What the guest takes over.
    takes: AtomicU8,
    /// Longest frame to the guest, without a VLAN tag.
    longest: AtomicUsize,
    pub(crate) announcement: Announcement,
    pub(crate) counters: AllCounters,
    pub(crate) sessions: AtomicU64,
    pub(crate) guest_faults: AtomicU64,
    /// What the guest did wrong in this session.
    fault: Mutex<Option<String>>,
    /// Why the last session ended.
    pub(crate) last_end: Mutex<Option<String>>,
    pub(crate) offloads: Offloads,
    pub(crate) mtu: usize,
}

pub(crate) const NOWHERE: usize = usize::MAX;

impl Shared {
    pub(crate) fn new(pairs: usize, mtu: usize, offloads: Offloads) -> Result<Arc<Self>, Error> {
        let vrings: Arc<[Vring]> = (0..2 * pairs).map(|_| Vring::default()).collect();
        let kicks = (0..pairs).map(|_| Kick::new()).collect::<Result<_, _>>();
        let kicks = kicks.map_err(|source| Error::Os { what: "a descriptor to wait on".into(), source })?;
        Ok(Arc::new_cyclic(|shared| Self {
            lendings: (0..pairs).map(|pair| Lends::lending(2 * pair, &vrings, shared)).collect(),
            vrings,
            lends: false.into(),
            kicks,
            routes: (0..pairs).map(|_| NOWHERE.into()).collect(),
            takes: (Takes::Plain as u8).into(),
            longest: (SHORTEST + mtu).into(),
            announcement: Announcement::default(),
            counters: AllCounters::new(pairs),
            sessions: 0.into(),
            guest_faults: 0.into(),
            fault: Mutex::default(),
            last_end: Mutex::default(),
            offloads,
            mtu,
        }))
    }

    /// Where a Tx queue's frames go: the guest's queue, and its number.
    #[inline]
    pub(crate) fn route(&self, queue: usize) -> Option<(usize, &Vring)> {
        let number = self.routes[queue].load(Relaxed).wrapping_mul(2);
        self.vrings.get(number).map(|vring| (number, vring))
    }

    /// Whether frames reach the guest.
    pub(crate) fn is_up(&self) -> bool {
        self.routes[0].load(Relaxed) != NOWHERE
    }

    /// Spreads the Tx queues over the pairs that the guest has enabled.
    pub(crate) fn set_routes(&self) {
        let enabled = |pair: &usize| {
            let state = self.vrings[2 * pair].lock();
            state.enabled && state.running.is_some()
        };
        let pairs: Vec<usize> = (0..self.kicks.len()).filter(enabled).collect();
        for (queue, route) in self.routes.iter().enumerate() {
            let pair = if pairs.is_empty() { NOWHERE } else { pairs[queue % pairs.len()] };
            route.store(pair, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn takes(&self) -> Takes {
        self.takes.load(Relaxed).into()
    }

    pub(crate) fn set_takes(&self, takes: Takes) {
        self.takes.store(takes as u8, Relaxed);
    }

    #[inline]
    pub(crate) fn longest(&self) -> usize {
        self.longest.load(Relaxed)
    }

    pub(crate) fn set_guest_mtu(&self, mtu: usize) {
        self.longest.store(SHORTEST + mtu, Relaxed);
    }

    /// Notes what the guest did wrong; the first of a session stays.
    #[cold]
    pub(crate) fn report(&self, queue: usize, fault: &Fault) {
        self.guest_faults.fetch_add(1, Relaxed);
        let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| format!("queue {queue}: {fault}"));
    }

    /// What the guest did wrong since the last time.
    pub(crate) fn take_fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_of_a_session_is_its_reason() {
        let shared = Shared::new(1, 1500, Offloads::default()).unwrap();
        shared.report(1, &Fault::NoHeader(3));
        shared.report(0, &Fault::NoHeader(4));
        assert!(shared.take_fault().is_some_and(|why| why.starts_with("queue 1: a chain of 3 bytes")));
        assert_eq!(shared.take_fault(), None);
        assert_eq!(shared.guest_faults.load(Relaxed), 2);
        assert!(!shared.is_up() && shared.route(0).is_none());
    }
}
