//! The application's side of a ring that a server serves.
//!
//! It passes on the slots that the program has released, and reads which slots belong to the program. All state
//! is in the CSB, so several programs may use the ring in turn.

use std::sync::Arc;

use crate::csb::{Answered, Csb, Locked};
use crate::ring_lock::Owned;
use crate::{Notifier, Positions, Ring, SyncError};

/// A ring with its CSB entry, on the application's side.
pub(crate) struct Application {
    ring: Ring,
    csb: Arc<Csb>,
    entry: usize,
    kick: Notifier,
    answered: Answered,
}

impl Application {
    /// Creates the application's side of a ring; `kick` wakes its server.
    ///
    /// # Panics
    /// If the CSB has no such entry.
    pub(crate) fn new(ring: Ring, csb: &Arc<Csb>, entry: usize, kick: &Notifier) -> Self {
        assert!(entry < csb.entries(), "an entry of the CSB");
        Self { ring, csb: csb.clone(), entry, kick: kick.clone(), answered: Answered::default() }
    }

    /// The ring.
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Reads the server's positions. Both are checked to be below the number of slots.
    #[inline]
    pub(crate) fn positions(&self) -> Result<Positions, SyncError> {
        let (cur, tail) = self.csb.read_ktoa(self.entry);
        Positions::at(self.ring.slots(), cur, tail).ok_or(SyncError::Peer(cur, tail))
    }

    /// `head` as it was last passed on.
    pub(crate) fn passed(&self) -> u32 {
        self.csb.read_atok(self.entry).head
    }

    /// Passes the program's `head`, `cur` and `flags` on to the server, and kicks it if there is news and it
    /// requests that. Returns where the ring stands.
    #[inline]
    pub(crate) fn pass(&self, head: u32, cur: u32, flags: u32) -> Result<Positions, SyncError> {
        self.positions()?.check(head, cur)?;
        let before = self.csb.read_atok(self.entry);
        let news = head != before.head || flags != 0;
        if news || cur != before.cur {
            self.csb.write_atok(self.entry, head, cur, flags);
        }
        if news && self.csb.kern_asks_for_kick(self.entry, &self.answered) {
            (self.kick)();
        }
        self.positions()
    }

    /// Takes the ring's lock.
    #[inline]
    pub(crate) fn lock(&self) -> Result<Option<Owned<'_>>, Locked> {
        self.csb.lock(self.entry)
    }

    pub(crate) fn set_need_kick(&self, call: bool) {
        self.csb.set_appl_need_kick(self.entry, call);
    }
}
