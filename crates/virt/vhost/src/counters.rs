//! Per-queue packet counters.

use std::sync::atomic::AtomicU64;

use ringpass_port::{Counters, Stats};

/// Counters of all queues, each written only by the thread that owns the queue.
pub(crate) struct AllCounters {
    pub(crate) rx: Box<[Counters]>,
    pub(crate) tx: Box<[Counters]>,
    /// Packets that reached the guest without a copy. Updated once per burst.
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

    pub(crate) fn queue_stats(&self) -> Vec<Stats> {
        Counters::of_each(&self.rx, &self.tx)
    }
}
