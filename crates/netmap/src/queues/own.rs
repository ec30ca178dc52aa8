//! A ring and how far its queue has come in it. The queue keeps that itself: what stands in the ring's header others may write.

use crate::{PortRing, Positions, SyncError};

pub(super) struct Own {
    pub(super) ring: PortRing,
    /// The first slot that was not given up.
    head: u32,
    /// Where the ring stood when it was last synchronised.
    positions: Positions,
}

impl Own {
    /// A ring in whatever state its last user left it.
    pub(super) fn new(ring: PortRing) -> Result<Self, SyncError> {
        let positions = ring.positions()?;
        let head = ring.passed() % ring.ring().slots();
        Ok(Self { ring, head, positions })
    }

    /// Slots of this side, from `head` on.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.positions.distance(self.head, self.positions.hwtail())
    }

    /// The position of the slot so many behind `head`, at most once around.
    #[inline]
    pub(super) fn at(&self, n: u32) -> u32 {
        self.positions.after(self.head, n)
    }

    /// Gives up the first so many slots, at the next [`sync`](Self::sync).
    #[inline]
    pub(super) fn give_up(&mut self, slots: u32) {
        debug_assert!(slots <= self.len());
        self.head = self.at(slots);
    }

    /// Passes on what was given up, and hears what the other side has done.
    #[inline]
    pub(super) fn sync(&mut self) -> Result<(), SyncError> {
        self.positions = self.ring.pass(self.head, self.head, 0)?;
        Ok(())
    }

    /// Before a sleep: the other side is to wake this one.
    pub(super) fn arm(&self) {
        // Whether something is there already, the look says that follows.
        let _ = self.ring.arm_at(self.head);
    }
}
