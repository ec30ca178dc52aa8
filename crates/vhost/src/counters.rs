//! Counters of the queues.

use std::sync::atomic::AtomicU64;

use ringpass_port::{Counters, Stats};

/// Of all queues, each written by its thread only.
pub(crate) struct AllCounters {
    pub(crate) rx: Box<[Counters]>,
    pub(crate) tx: Box<[Counters]>,
    /// Packets to the guest that were not copied. Added to once a burst.
    pub(crate) mapped: AtomicU64,
}

impl AllCounters {
    pub(crate) fn new(queues: usize) -> Self {
        let counters = || (0..queues).map(|_| Counters::default()).collect();
        Self { rx: counters(), tx: counters(), mapped: 0.into() }
    }

    pub(crate) fn stats(&self) -> Stats {
        Counters::sum(&self.rx, &self.tx)
    }
}
