//! Counters of a pool's usage.

use std::sync::atomic::Ordering;

use crate::Mempool;

impl Mempool {
    /// Returns the number of buffers, free or not.
    pub fn capacity(&self) -> usize {
        self.shared().depot.slots.len()
    }

    /// Returns the number of buffers outside the depot: in packets, rings and caches. `handles` is the number
    /// of live handles and caches. Exact while no other thread uses the pool.
    pub fn outstanding(&self, handles: usize) -> usize {
        self.shared().references.load(Ordering::Acquire).saturating_sub(handles)
    }

    /// Returns how often a buffer was requested when none was left.
    pub fn exhausted(&self) -> u64 {
        self.shared().exhausted.load(Ordering::Relaxed)
    }
}
