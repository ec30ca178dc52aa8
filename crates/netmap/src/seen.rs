//! Where a ring stood when this process looked last.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Positions;

/// Positions that were seen: right as long as `hwcur`, which is the looker's own word, is still the same, and then the tail
/// can only have moved on.
#[derive(Debug)]
pub struct Seen(AtomicU64);

/// There is no such slot.
const NOTHING: u64 = u64::MAX;

impl Default for Seen {
    fn default() -> Self {
        Self(NOTHING.into())
    }
}

impl Seen {
    /// What was seen when `hwcur` was the same.
    #[inline]
    pub fn get(&self, slots: u32, cur: u32) -> Option<Positions> {
        let both = self.0.load(Relaxed);
        Positions::at(slots, cur, both as u32).filter(|_| (both >> 32) as u32 == cur)
    }

    /// This is seen now.
    #[inline]
    pub fn set(&self, positions: &Positions) {
        self.0.store(u64::from(positions.hwcur()) << 32 | u64::from(positions.hwtail()), Relaxed);
    }
}
