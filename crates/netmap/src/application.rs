//! A ring as a program has it, served by somebody else: what the program gives up is passed on, and it is told what is its
//! own. All that there is to know stands in the CSB, so that any number of programs may have the ring, in turns.

use std::sync::Arc;

use crate::csb::{Csb, FromApplication, FromServer};
use crate::{Bell, Positions, Ring, SyncError};

/// A ring with its entry of the CSB.
pub struct Application {
    ring: Ring,
    csb: Arc<Csb>,
    entry: usize,
    kick: Bell,
}

impl Application {
    /// A ring; `kick` wakes its server.
    ///
    /// # Panics
    /// If the CSB has no such entry.
    pub fn new(ring: Ring, csb: &Arc<Csb>, entry: usize, kick: &Bell) -> Self {
        assert!(entry < csb.entries(), "an entry of the CSB");
        Self { ring, csb: csb.clone(), entry, kick: kick.clone() }
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    fn said(&self) -> &FromApplication {
        self.csb.application(self.entry)
    }

    fn told(&self) -> &FromServer {
        self.csb.server(self.entry)
    }

    /// As the server tells now. What it says is checked as far as it is used: there are such slots.
    #[inline]
    pub(crate) fn positions(&self) -> Result<Positions, SyncError> {
        let (cur, tail) = self.told().read();
        Positions::at(self.ring.slots(), cur, tail).ok_or(SyncError::Peer(cur, tail))
    }

    /// Where the program stood when it was last passed on.
    pub(crate) fn passed(&self) -> u32 {
        self.said().read().0
    }

    /// Passes on what the program says. Returns where the ring stands.
    #[inline]
    pub(crate) fn pass(&self, head: u32, cur: u32, flags: u32) -> Result<Positions, SyncError> {
        self.positions()?.check(head, cur)?;
        let (before, awaited, _) = self.said().read();
        let news = head != before || flags != 0;
        if news || cur != awaited {
            self.said().write(head, cur, flags);
        }
        if news && self.told().wants_a_kick() {
            (self.kick)();
        }
        self.positions()
    }

    pub(crate) fn want(&self, call: bool) {
        self.said().want(call);
    }
}
