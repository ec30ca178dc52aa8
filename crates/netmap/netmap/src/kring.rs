//! The serving side of a ring: validates the application's positions, tracks which slots were processed, and
//! publishes the result.
//!
//! Nothing is done with invalid positions: the server then either ends the port or [restarts](Kring::restart)
//! the ring.

use std::sync::Arc;

use crate::csb::{Answered, Csb, Released};
use crate::{Direction, Offsets, Positions, Ring, SyncError};

/// A ring with its CSB entry, on the serving side (netmap's `netmap_kring`). Belongs to the thread that serves
/// it.
pub struct Kring {
    ring: Ring,
    direction: Direction,
    csb: Arc<Csb>,
    entry: usize,
    positions: Positions,
    offsets: Offsets,
    answered: Answered,
}

impl Kring {
    /// Creates a ring in its initial state and writes that state to both halves of its CSB entry.
    ///
    /// # Panics
    /// If the CSB has no such entry.
    pub fn new(direction: Direction, ring: Ring, csb: &Arc<Csb>, entry: usize) -> Self {
        let positions = Positions::new(direction, ring.slots());
        csb.write_atok(entry, positions.hwcur(), positions.hwcur(), 0);
        csb.write_ktoa(entry, positions.hwcur(), positions.hwtail());
        Self {
            ring,
            direction,
            csb: csb.clone(),
            entry,
            positions,
            offsets: Offsets::default(),
            answered: Answered::default(),
        }
    }

    /// Creates a ring that stands at these positions, for a program that goes on. `None` if it has no such positions.
    ///
    /// # Panics
    /// If the CSB has no such entry.
    pub(crate) fn resume(
        (direction, ring): (Direction, Ring),
        (csb, entry): (&Arc<Csb>, usize),
        positions: Positions,
        offsets: Offsets,
    ) -> Option<Self> {
        let positions = Positions::at(ring.slots(), positions.hwcur(), positions.hwtail())?;
        csb.write_ktoa(entry, positions.hwcur(), positions.hwtail());
        Some(Self { ring, direction, csb: csb.clone(), entry, positions, offsets, answered: Answered::default() })
    }

    /// Positions of the ring.
    pub fn positions(&self) -> Positions {
        self.positions
    }

    /// The ring.
    #[inline]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Direction of its frames.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Where frames begin in the ring's buffers.
    #[inline]
    pub fn offsets(&self) -> Offsets {
        self.offsets
    }

    /// Sets where frames begin in the ring's buffers from now on.
    pub fn set_offsets(&mut self, offsets: Offsets) {
        self.offsets = offsets;
    }

    /// Index of its CSB entry.
    #[inline]
    pub fn entry(&self) -> usize {
        self.entry
    }

    /// Reads the application's positions and returns how many slots it has released since: frames to be sent,
    /// or slots whose frames it has read. The first of them is [`hwcur_plus`](Self::hwcur_plus)`(0)`.
    #[inline]
    pub fn poll_released(&self) -> Result<u32, SyncError> {
        let Released { head, cur, .. } = self.csb.read_atok(self.entry);
        self.positions.check(head, cur)
    }

    /// Position of the `n`-th released slot: `n` slots after `hwcur`.
    #[inline]
    pub fn hwcur_plus(&self, n: u32) -> u32 {
        self.positions.after(self.positions.hwcur(), n)
    }

    /// Marks the first `slots` released slots as processed: advances `hwcur`.
    #[inline]
    pub fn advance_hwcur(&mut self, slots: u32) {
        self.positions.advance_hwcur(slots);
    }

    /// Number of slots that neither belong to the application nor wait to be processed: slots of sent frames
    /// not yet returned to it (Tx), or slots that can take received frames (Rx). The first of them is
    /// [`hwtail_plus`](Self::hwtail_plus)`(0)`.
    #[inline]
    pub fn room(&self) -> u32 {
        self.positions.room()
    }

    /// Position of the `n`-th such slot: `n` slots after `hwtail`.
    #[inline]
    pub fn hwtail_plus(&self, n: u32) -> u32 {
        self.positions.after(self.positions.hwtail(), n)
    }

    /// Hands the first `slots` of them to the application, with the next [`publish`](Self::publish): advances
    /// `hwtail`.
    #[inline]
    pub fn advance_hwtail(&mut self, slots: u32) {
        self.positions.advance_hwtail(slots);
    }

    /// Publishes `hwcur` and `hwtail`. Returns whether the application wants to be woken, and was not since it asked for that.
    #[inline]
    pub fn publish(&self) -> bool {
        self.csb.write_ktoa(self.entry, self.positions.hwcur(), self.positions.hwtail());
        self.csb.appl_asks_for_kick(self.entry, &self.answered)
    }

    /// Resets both sides to the server's positions, after the application has set invalid ones. Slots that were
    /// released but not processed belong to the application again.
    pub fn restart(&self) {
        let (cur, tail) = (self.positions.hwcur(), self.positions.hwtail());
        self.csb.write_atok(self.entry, cur, cur, 0);
        self.csb.write_ktoa(self.entry, cur, tail);
    }

    /// Before blocking: requests a kick from the application, then checks once more. Returns whether still no
    /// more than `seen` slots are released, so that the caller may block.
    pub fn arm(&self, seen: u32) -> Result<bool, SyncError> {
        self.csb.set_kern_need_kick(self.entry, true);
        Ok(self.poll_released()? == seen)
    }

    /// After blocking: no longer requests a kick.
    pub fn disarm(&self) {
        self.csb.set_kern_need_kick(self.entry, false);
    }
}
