//! Counters of a passed-through port.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the port was created. Any thread may read them.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) kicks: AtomicU64,
    pub(crate) interrupts: AtomicU64,
    pub(crate) creates: AtomicU64,
    pub(crate) invalid_positions: AtomicU64,
    pub(crate) peer_faults: AtomicU64,
}

/// Values of [`Counters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Doorbell writes of the guest.
    pub kicks: u64,
    /// Interrupts sent to the guest.
    pub interrupts: u64,
    /// Number of times that a guest has started the port.
    pub creates: u64,
    /// Invalid ring positions of the guest, which were not passed on.
    pub invalid_positions: u64,
    /// Number of times that the positions of the port's other side became invalid.
    pub peer_faults: u64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Counters {
    /// Returns the current values.
    pub fn get(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            kicks: get(&self.kicks),
            interrupts: get(&self.interrupts),
            creates: get(&self.creates),
            invalid_positions: get(&self.invalid_positions),
            peer_faults: get(&self.peer_faults),
        }
    }
}
