//! A ring of a port as its program has it, whoever is behind it: a server, or the other end of a pipe.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::pipe::{Receiver, Sender};
use crate::{Application, Positions, Ring, Wild};

/// Wakes whoever is at the other side.
pub type Bell = Arc<dyn Fn() + Send + Sync>;

/// Why a sync failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The program's word was not passed on.
    #[error("the program set {0}")]
    Program(#[from] Wild),
    /// The other side, a server or the other end of a pipe, is where nobody can be.
    #[error("the other side has moved to slots {0} and {1}, which there are not")]
    Peer(u32, u32),
}

/// A ring to send or to receive, by netmap's rules: the slots from `head` to `tail` are the program's, and [`sync`](Self::sync)
/// passes on those that it has moved `head` over. May be shared by threads; those that use it at the same time must
/// agree on who moves `head`.
pub enum PortRing {
    /// Served.
    Served(Application),
    /// An end of a pipe, to send.
    Sender(Sender),
    /// An end of a pipe, to receive.
    Receiver(Receiver),
}

macro_rules! each {
    ($self:ident, $ring:ident => $what:expr) => {
        match $self {
            PortRing::Served($ring) => $what,
            PortRing::Sender($ring) => $what,
            PortRing::Receiver($ring) => $what,
        }
    };
}

impl PortRing {
    /// The ring.
    #[inline]
    pub fn ring(&self) -> &Ring {
        each!(self, ring => ring.ring())
    }

    /// Passes on a program's `head` and `cur` from elsewhere than the ring's header; `flags` as in the
    /// [`csb`](crate::csb). Returns where the ring stands; on [`SyncError::Program`] nothing was done.
    #[inline]
    pub fn pass(&self, head: u32, cur: u32, flags: u32) -> Result<Positions, SyncError> {
        match self {
            Self::Served(ring) => ring.pass(head, cur, flags),
            Self::Sender(ring) => ring.pass(head, cur),
            Self::Receiver(ring) => ring.pass(head, cur),
        }
    }

    /// Where the ring stands now.
    #[inline]
    pub fn positions(&self) -> Result<Positions, SyncError> {
        each!(self, ring => ring.positions())
    }

    /// Where `head` was when it was last passed on.
    pub fn passed(&self) -> u32 {
        each!(self, ring => ring.passed())
    }

    /// Passes on what the program has given up, and moves `tail`. After a program's error the ring begins again where it
    /// stood.
    #[inline]
    pub fn sync(&self) -> Result<(), SyncError> {
        self.sync_with(0)
    }

    /// As [`sync`](Self::sync), with flags as in the [`csb`](crate::csb).
    #[inline]
    pub fn sync_with(&self, flags: u32) -> Result<(), SyncError> {
        let ring = self.ring();
        let (head, cur) = ring.said();
        match self.pass(head, cur, flags) {
            Ok(positions) => {
                // Most often another core has the line.
                if ring.header().tail.load(Relaxed) != positions.hwtail() {
                    ring.tell(positions.hwtail());
                }
                Ok(())
            }
            Err(error) => Err(self.restart(error)),
        }
    }

    #[cold]
    fn restart(&self, error: SyncError) -> SyncError {
        self.begin_again().err().unwrap_or(error)
    }

    /// Has the program begin where it was last passed on: what it says in the header counts for nothing.
    pub fn begin_again(&self) -> Result<(), SyncError> {
        let tail = self.positions()?.hwtail();
        self.ring().restart(self.passed() % self.ring().slots(), tail);
        Ok(())
    }

    /// Whether there are slots for the program beyond its `cur`, as of the last sync.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let header = self.ring().header();
        header.cur.load(Relaxed) != header.tail.load(Acquire)
    }

    /// Slots that are the program's, from `head` on, as of the last sync.
    #[inline]
    pub fn own(&self) -> u32 {
        let (header, slots) = (self.ring().header(), self.ring().slots());
        let (head, tail) = (header.head.load(Relaxed), header.tail.load(Acquire));
        Positions::at(slots, head, tail).map_or(0, |positions| positions.distance(head, tail))
    }

    /// The position of the slot so many behind `head`, at most once around.
    #[inline]
    pub fn position(&self, n: u32) -> u32 {
        let sum = self.ring().header().head.load(Relaxed).wrapping_add(n);
        let slots = self.ring().slots();
        if sum >= slots { sum.wrapping_sub(slots).min(slots - 1) } else { sum }
    }

    /// The positions of the first so many slots from `head` on.
    #[inline]
    pub fn first(&self, slots: u32) -> impl ExactSizeIterator<Item = u32> + use<> {
        let (head, all) = (self.position(0), self.ring().slots());
        (0..slots).map(move |n| {
            let sum = head + n;
            if sum >= all { sum - all } else { sum }
        })
    }

    /// Gives up the first so many slots, at the next sync.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn give_up(&self, slots: u32) {
        assert!(slots <= self.own(), "slots of somebody else");
        let head = self.position(slots);
        self.ring().header().cur.store(head, Relaxed);
        self.ring().header().head.store(head, Relaxed);
    }

    /// Before a sleep: has the other side wake this one, then looks once more. Whether there is still nothing for a program
    /// that stands at `cur`.
    pub fn arm_at(&self, cur: u32) -> Result<bool, SyncError> {
        each!(self, ring => ring.want(true));
        Ok(self.positions()?.hwtail() == cur)
    }

    /// As [`arm_at`](Self::arm_at) where the program's `cur` stands. `tail` is moved.
    pub fn arm(&self) -> Result<bool, SyncError> {
        each!(self, ring => ring.want(true));
        let tail = self.positions()?.hwtail();
        self.ring().tell(tail);
        Ok(tail == self.ring().said().1)
    }

    /// Behind a sleep.
    pub fn disarm(&self) {
        each!(self, ring => ring.want(false));
    }
}
