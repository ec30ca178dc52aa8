//! A ring as the application has it, served by somebody else: by head, cur and tail in its header, and syncs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::csb::Csb;
use crate::{Direction, Positions, Ring, Wild};

/// A ring with its entry of the CSB. Belongs to one thread.
pub struct Application {
    ring: Ring,
    csb: Arc<Csb>,
    entry: usize,
    /// As the server told last.
    positions: Positions,
    /// What was passed on.
    passed: (u32, u32),
}

/// Why a sync failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The program's word was not passed on; the ring stands where it stood.
    #[error("the program set {0}")]
    Program(Wild),
    /// The server said what cannot be: `hwcur` and `hwtail`.
    #[error("the server has told slots {0} and {1}, which cannot be")]
    Server(u32, u32),
}

impl Application {
    /// A ring in its first state.
    pub fn new(direction: Direction, ring: Ring, csb: &Arc<Csb>, entry: usize) -> Self {
        let positions = Positions::new(direction, ring.slots());
        Self { ring, csb: csb.clone(), entry, positions, passed: (0, 0) }
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Slots that are the program's, from `head` on, as of the last sync.
    #[inline]
    pub fn own(&self) -> u32 {
        let head = self.ring.header().head.load(Relaxed);
        self.positions.check(head, head).map_or(0, |_| self.positions.distance(head, self.positions.hwtail()))
    }

    /// The position of one of those slots.
    #[inline]
    pub fn position(&self, n: u32) -> u32 {
        self.positions.after(self.ring.header().head.load(Relaxed), n)
    }

    /// Gives up the first so many of those slots, at the next sync.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn give_up(&mut self, slots: u32) {
        assert!(slots <= self.own(), "slots of somebody else");
        let head = self.position(slots);
        self.ring.header().cur.store(head, Relaxed);
        self.ring.header().head.store(head, Relaxed);
    }

    /// Passes on what the program has given up, and takes over what the server has told. Whether the server wants a kick.
    #[inline]
    pub fn sync(&mut self, flags: u32) -> Result<bool, SyncError> {
        let (head, cur) = self.ring.said();
        if let Err(wild) = self.positions.check(head, cur) {
            self.ring.restart(self.positions);
            return Err(SyncError::Program(wild));
        }
        let news = head != self.passed.0 || flags != 0;
        if news || cur != self.passed.1 {
            self.csb.application(self.entry).write(head, cur, flags);
            self.passed = (head, cur);
        }
        let kick = news && self.csb.server(self.entry).wants_a_kick();
        self.take_over()?;
        Ok(kick)
    }

    /// What the server has told. It may move on, and not beyond what it was given.
    fn take_over(&mut self) -> Result<(), SyncError> {
        let (cur, tail) = self.csb.server(self.entry).read();
        let told = self.positions.told(self.passed.0, cur, tail).ok_or(SyncError::Server(cur, tail))?;
        if told != self.positions {
            self.positions = told;
            self.ring.tell(tail);
        }
        Ok(())
    }

    /// Before a sleep: has the server call, then looks once more. Whether there is still nothing beyond `cur`.
    pub fn arm(&mut self) -> Result<bool, SyncError> {
        self.csb.application(self.entry).want(true);
        self.take_over()?;
        Ok(self.passed.1 == self.positions.hwtail())
    }

    /// Behind a sleep.
    pub fn disarm(&self) {
        self.csb.application(self.entry).want(false);
    }
}
