//! The positions of a ring as this process read them last.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Positions;

/// Cached positions. They are valid as long as `hwcur`, which only this side advances, is unchanged: then the
/// tail can only have advanced since.
#[derive(Debug)]
pub struct PositionCache(AtomicU64);

/// Value without cached positions: `Positions::at` rejects it.
const NOTHING: u64 = u64::MAX;

impl Default for PositionCache {
    fn default() -> Self {
        Self(NOTHING.into())
    }
}

impl PositionCache {
    /// Returns the cached positions, if they were stored with the same `hwcur`.
    #[inline]
    pub fn get(&self, slots: u32, cur: u32) -> Option<Positions> {
        let both = self.0.load(Relaxed);
        Positions::at(slots, cur, both as u32).filter(|_| (both >> 32) as u32 == cur)
    }

    /// Forgets the positions. To be called when another process may have advanced `hwcur`, which can have come back to the same slot.
    pub fn clear(&self) {
        self.0.store(NOTHING, Relaxed);
    }

    /// Stores the positions that were just read.
    #[inline]
    pub fn set(&self, positions: &Positions) {
        self.0.store(u64::from(positions.hwcur()) << 32 | u64::from(positions.hwtail()), Relaxed);
    }
}
