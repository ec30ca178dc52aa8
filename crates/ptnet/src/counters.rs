//! What a port has seen of its guests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counted since the port is passed through; may be read by any thread.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) kicks: AtomicU64,
    pub(crate) interrupts: AtomicU64,
    pub(crate) creates: AtomicU64,
    pub(crate) wild: AtomicU64,
    pub(crate) peer_faults: AtomicU64,
}

/// [`Counters`] as they are at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Doorbells of the guest.
    pub kicks: u64,
    /// Interrupts for it.
    pub interrupts: u64,
    /// How often a guest has started the port.
    pub creates: u64,
    /// Positions of the guest that cannot be, and were not passed on.
    pub wild: u64,
    /// How often the port's other side was where nobody can be.
    pub peer_faults: u64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Counters {
    /// As they are now.
    pub fn get(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            kicks: get(&self.kicks),
            interrupts: get(&self.interrupts),
            creates: get(&self.creates),
            wild: get(&self.wild),
            peer_faults: get(&self.peer_faults),
        }
    }
}
