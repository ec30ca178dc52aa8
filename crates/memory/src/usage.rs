//! How much of a pool is in use.

use std::sync::atomic::Ordering;

use crate::Mempool;

impl Mempool {
    /// Number of buffers, free or not.
    pub fn capacity(&self) -> usize {
        self.shared().depot.slots.len()
    }

    /// Buffers outside the depot: in packets, rings and caches. Exact while no other thread uses the pool, where
    /// `handles` is the number of live handles and caches.
    pub fn outstanding(&self, handles: usize) -> usize {
        self.shared().references.load(Ordering::Acquire).saturating_sub(handles)
    }

    /// How often a buffer was asked for when none was left.
    pub fn exhausted(&self) -> u64 {
        self.shared().exhausted.load(Ordering::Relaxed)
    }
}
