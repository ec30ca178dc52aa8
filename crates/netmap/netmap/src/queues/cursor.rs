//! A ring with its queue's own position. The queue does not rely on the ring's header, which others may write.

use crate::{PortRing, Positions, SyncError};

pub(super) struct RingCursor {
    pub(super) ring: PortRing,
    /// First slot that was not released.
    head: u32,
    /// Position of the ring at the last sync.
    positions: Positions,
}

impl RingCursor {
    /// Takes a ring in the state in which its last user left it.
    pub(super) fn new(ring: PortRing) -> Result<Self, SyncError> {
        let positions = ring.positions()?;
        let head = ring.passed() % ring.ring().slots();
        Ok(Self { ring, head, positions })
    }

    /// Number of slots that this side owns, from `head` on.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.positions.distance(self.head, self.positions.hwtail())
    }

    /// Position of the slot `n` slots after `head`. `n` is at most the ring's size.
    #[inline]
    pub(super) fn at(&self, n: u32) -> u32 {
        self.positions.after(self.head, n)
    }

    /// Releases the first `slots` slots, with the next [`sync`](Self::sync).
    #[inline]
    pub(super) fn release_slots(&mut self, slots: u32) {
        debug_assert!(slots <= self.len());
        self.head = self.at(slots);
    }

    /// Passes the released slots on, and reads the other side's positions.
    #[inline]
    pub(super) fn sync(&mut self) -> Result<(), SyncError> {
        self.positions = self.ring.pass(self.head, self.head, 0)?;
        Ok(())
    }

    /// Before blocking: requests a kick from the other side.
    pub(super) fn arm(&self) {
        // The result is not needed: the caller polls once more before it blocks.
        let _ = self.ring.arm_at(self.head);
    }
}
