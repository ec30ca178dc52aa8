//! A ring as whoever serves it sees it: what the application says is checked, slots are dealt with, and the application is
//! told. Nothing is done with what it has said wrong: whoever serves ends the port, or has the ring
//! [begin again](Served::restart).

use std::sync::Arc;

use crate::csb::Csb;
use crate::{Direction, Positions, Ring, Wild};

/// A ring with its entry of the CSB. Belongs to the thread that serves it.
pub struct Served {
    ring: Ring,
    direction: Direction,
    csb: Arc<Csb>,
    entry: usize,
    positions: Positions,
}

impl Served {
    /// A ring in its first state. Both sides of its entry say so.
    ///
    /// # Panics
    /// If the CSB has no such entry.
    pub fn new(direction: Direction, ring: Ring, csb: &Arc<Csb>, entry: usize) -> Self {
        let positions = Positions::new(direction, ring.slots());
        csb.application(entry).write(positions.hwcur(), positions.hwcur(), 0);
        csb.server(entry).write(positions.hwcur(), positions.hwtail());
        Self { ring, direction, csb: csb.clone(), entry, positions }
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Which way its frames go.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Its entry of the CSB.
    #[inline]
    pub fn entry(&self) -> usize {
        self.entry
    }

    /// How many slots the application has given up since: frames to be sent, or slots whose frames it has read. The first of
    /// them is [`given`](Self::given)`(0)`.
    #[inline]
    pub fn look(&self) -> Result<u32, Wild> {
        let (head, cur, _) = self.csb.application(self.entry).read();
        self.positions.check(head, cur)
    }

    /// The position of one of those slots.
    #[inline]
    pub fn given(&self, n: u32) -> u32 {
        self.positions.after(self.positions.hwcur(), n)
    }

    /// So many of those slots are dealt with.
    #[inline]
    pub fn take(&mut self, slots: u32) {
        self.positions.take(slots);
    }

    /// How many slots are neither the application's nor to be dealt with: those of sent frames that it has not got back, or
    /// those that frames can be put into. The first of them is [`free`](Self::free)`(0)`.
    #[inline]
    pub fn room(&self) -> u32 {
        self.positions.free()
    }

    /// The position of one of those slots.
    #[inline]
    pub fn free(&self, n: u32) -> u32 {
        self.positions.after(self.positions.hwtail(), n)
    }

    /// So many of those slots are the application's.
    #[inline]
    pub fn give(&mut self, slots: u32) {
        self.positions.give(slots);
    }

    /// Tells the application where the ring stands. Whether it wants to be called.
    #[inline]
    pub fn tell(&self) -> bool {
        self.csb.server(self.entry).write(self.positions.hwcur(), self.positions.hwtail());
        self.csb.application(self.entry).wants_a_call()
    }

    /// After the application has said what cannot be: both sides stand where the server does, and what was given up and not
    /// dealt with is the application's again.
    pub fn restart(&self) {
        let (cur, tail) = (self.positions.hwcur(), self.positions.hwtail());
        self.csb.application(self.entry).write(cur, cur, 0);
        self.csb.server(self.entry).write(cur, tail);
    }

    /// Before a sleep: has the application kick, then looks once more. Whether there is still nothing that it has given up
    /// since `seen` slots were.
    pub fn arm(&self, seen: u32) -> Result<bool, Wild> {
        self.csb.server(self.entry).want(true);
        Ok(self.look()? == seen)
    }

    /// Behind a sleep.
    pub fn disarm(&self) {
        self.csb.server(self.entry).want(false);
    }
}
