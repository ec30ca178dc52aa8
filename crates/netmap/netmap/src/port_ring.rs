//! The program's side of a port's ring, whether a server or the other end of a pipe is behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::application::Application;
use crate::csb::Csb;
use crate::pipe::{PipeChannel, Receiver, Sender};
use crate::positions::{Positions, SyncError};
use crate::ring_lock::LockedRing;
use crate::tap::{Follower, Tap, TapWriter, Watcher};
use crate::{Buffers, Notifier, Ring, Slot};

/// A ring to send or to receive, by netmap's rules: the program owns the slots from `head` to `tail`, and
/// [`sync`](Self::sync) passes on those that it has moved `head` over.
///
/// It may be shared by threads, and with other processes. Those that synchronise it at the same time take its [`lock`](Self::lock), and
/// must agree on which of them moves `head`.
pub struct PortRing(Side);

/// The other side of the ring.
enum Side {
    /// A server.
    Server(Application),
    /// The receiving end of a pipe.
    Sender(Sender),
    /// The sending end of a pipe.
    Receiver(Receiver),
    /// This process itself, which follows the frames of a pipe.
    Watcher(Box<Watcher>),
}

macro_rules! each {
    ($self:ident, $ring:ident => $what:expr) => {
        match &$self.0 {
            Side::Server($ring) => $what,
            Side::Sender($ring) => $what,
            Side::Receiver($ring) => $what,
            Side::Watcher($ring) => $what,
        }
    };
}

impl PortRing {
    /// Creates a program's side of a ring that a server serves, with its entry in the CSB; `kick` wakes the server.
    ///
    /// # Panics
    /// If the CSB has no such entry.
    pub fn served(ring: Ring, csb: &Arc<Csb>, entry: usize, kick: &Notifier) -> Self {
        Self(Side::Server(Application::new(ring, csb, entry, kick)))
    }

    /// Creates the sending end of a pipe, of the sender's and the receiver's ring in any state. Both ends share the
    /// entry in the CSB and the one two further on; `notify` wakes the other end.
    pub fn sender(rings: [Ring; 2], csb: &Arc<Csb>, entry: usize, notify: &Notifier) -> Self {
        Self(Side::Sender(Sender::new(PipeChannel::new(rings, csb, entry, notify))))
    }

    /// Creates the receiving end of a pipe; see [`sender`](Self::sender).
    pub fn receiver(rings: [Ring; 2], csb: &Arc<Csb>, entry: usize, notify: &Notifier) -> Self {
        Self(Side::Receiver(Receiver::new(PipeChannel::new(rings, csb, entry, notify))))
    }

    /// Copies the frames that this end of a pipe sends to a log, as long as the pipe's CSB says that there are monitors.
    ///
    /// # Panics
    /// If it is not the sending end of a pipe.
    pub(crate) fn with_tap(mut self, tap: TapWriter) -> Self {
        match &mut self.0 {
            Side::Sender(sender) => sender.set_tap(tap),
            _ => panic!("not the sending end of a pipe"),
        }
        self
    }

    /// Creates a ring of a monitor of a pipe, with the logs that it follows and its entry in the monitor's own CSB. The ring must be
    /// in its initial state, or in that of an earlier monitor.
    pub(crate) fn watcher(ring: Ring, csb: (&Arc<Csb>, usize), tap: &Arc<Tap>, followers: Vec<Follower>) -> Self {
        Self(Side::Watcher(Box::new(Watcher::new(ring, csb, tap, followers))))
    }

    /// Takes the ring's lock, which all programs share that have registered the ring, and all processes with the registration. `None`
    /// if another thread or process has it, even after a bounded wait; the ring is then to be left to that one. Calls of the same
    /// thread that nest find it taken.
    #[inline]
    pub fn lock(&self) -> Option<LockedRing<'_>> {
        each!(self, ring => ring.lock()).ok().map(LockedRing)
    }

    /// The ring.
    #[inline]
    pub fn ring(&self) -> &Ring {
        each!(self, ring => ring.ring())
    }

    /// Passes on positions that the caller has read elsewhere than in the ring's header, with the flags of a [`csb`](crate::csb)
    /// entry. Returns the ring's positions.
    ///
    /// # Errors
    /// On [`SyncError::Program`] nothing was passed on.
    #[inline]
    pub fn pass(&self, head: u32, cur: u32, flags: u32) -> Result<Positions, SyncError> {
        match &self.0 {
            Side::Server(ring) => ring.pass(head, cur, flags),
            Side::Sender(ring) => ring.pass(head, cur),
            Side::Receiver(ring) => ring.pass(head, cur),
            Side::Watcher(ring) => ring.pass(head, cur),
        }
    }

    /// Reads where the ring stands now.
    #[inline]
    pub fn positions(&self) -> Result<Positions, SyncError> {
        each!(self, ring => ring.positions())
    }

    /// `head` as it was last passed on.
    pub fn passed(&self) -> u32 {
        each!(self, ring => ring.passed())
    }

    /// First of the slots that the next sync passes on, and their number; none if `head` or `cur` is invalid.
    #[inline]
    pub fn unpassed(&self) -> (u32, u32) {
        let (head, cur) = self.ring().head_and_cur();
        self.unpassed_until(head, cur)
    }

    /// Like [`unpassed`](Self::unpassed), with positions that the caller has read elsewhere than in the ring's header.
    #[inline]
    pub fn unpassed_until(&self, head: u32, cur: u32) -> (u32, u32) {
        let passed = self.passed();
        let valid = self.positions().is_ok_and(|positions| positions.check(head, cur).is_ok());
        let range = Positions::at(self.ring().slots(), passed, head).filter(|_| valid);
        range.map_or((0, 0), |range| (passed, range.distance(passed, head)))
    }

    /// Passes on the slots that the program has released, and updates `tail`. After an error of the program the
    /// ring continues from the positions last passed on.
    #[inline]
    pub fn sync(&self) -> Result<(), SyncError> {
        self.sync_with(0)
    }

    /// Like [`sync`](Self::sync), with flags as in the [`csb`](crate::csb).
    #[inline]
    pub fn sync_with(&self, flags: u32) -> Result<(), SyncError> {
        let ring = self.ring();
        let (head, cur) = ring.head_and_cur();
        match self.pass(head, cur, flags) {
            Ok(positions) => {
                // An unchanged `tail` is not written: another core mostly has the cache line.
                if ring.header().tail.load(Relaxed) != positions.hwtail() {
                    ring.set_tail(positions.hwtail());
                }
                Ok(())
            }
            Err(error) => Err(self.restart(error)),
        }
    }

    #[cold]
    fn restart(&self, error: SyncError) -> SyncError {
        self.reinit().err().unwrap_or(error)
    }

    /// Resets the header to the positions last passed on and discards what the program has written there
    /// (netmap's `netmap_ring_reinit()`).
    pub fn reinit(&self) -> Result<(), SyncError> {
        let tail = self.positions()?.hwtail();
        self.ring().restart(self.passed() % self.ring().slots(), tail);
        Ok(())
    }

    /// Empties the program's slots that name none of `buffers`, and sets lengths to 0 that exceed a buffer, as
    /// netmap does when it resets a ring. The other side's slots are left to it.
    #[cold]
    pub fn repair(&self, buffers: &Buffers) {
        for position in self.first(self.own()) {
            let Slot { buffer, len, flags, pointer } = self.ring().slot(position);
            if !buffers.holds(buffer, 0) {
                self.ring().set(position, Slot { buffer: 0, len: 0, flags, pointer });
            } else if !buffers.holds(buffer, len.into()) {
                self.ring().set(position, Slot { buffer, len: 0, flags, pointer });
            }
        }
    }

    /// Whether the program owns slots beyond its `cur`, as of the last sync.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let header = self.ring().header();
        header.cur.load(Relaxed) != header.tail.load(Acquire)
    }

    /// Number of slots that the program owns, from `head` on, as of the last sync.
    #[inline]
    pub fn own(&self) -> u32 {
        let (header, slots) = (self.ring().header(), self.ring().slots());
        let (head, tail) = (header.head.load(Relaxed), header.tail.load(Acquire));
        Positions::at(slots, head, tail).map_or(0, |positions| positions.distance(head, tail))
    }

    /// Position of the slot `n` slots after `head`. `n` is at most the ring's size.
    #[inline]
    pub fn position(&self, n: u32) -> u32 {
        let sum = self.ring().header().head.load(Relaxed).wrapping_add(n);
        let slots = self.ring().slots();
        if sum >= slots { sum.wrapping_sub(slots).min(slots - 1) } else { sum }
    }

    /// Positions of the first `slots` slots from `head` on.
    #[inline]
    pub fn first(&self, slots: u32) -> impl ExactSizeIterator<Item = u32> + use<> {
        let (head, all) = (self.position(0), self.ring().slots());
        (0..slots).map(move |n| {
            let sum = head + n;
            if sum >= all { sum - all } else { sum }
        })
    }

    /// Releases the first `slots` slots, with the next sync.
    ///
    /// # Panics
    /// If the program owns fewer.
    #[inline]
    pub fn release_slots(&self, slots: u32) {
        assert!(slots <= self.own(), "slots of somebody else");
        let head = self.position(slots);
        self.ring().header().cur.store(head, Relaxed);
        self.ring().header().head.store(head, Relaxed);
    }

    /// Before blocking: requests a kick from the other side, then checks once more. Returns whether there is
    /// still nothing for a program whose position is `cur`.
    pub fn arm_at(&self, cur: u32) -> Result<bool, SyncError> {
        each!(self, ring => ring.set_need_kick(true));
        Ok(self.positions()?.hwtail() == cur)
    }

    /// Like [`arm_at`](Self::arm_at) with the program's `cur`. Updates `tail`.
    pub fn arm(&self) -> Result<bool, SyncError> {
        each!(self, ring => ring.set_need_kick(true));
        let tail = self.positions()?.hwtail();
        self.ring().set_tail(tail);
        Ok(tail == self.ring().head_and_cur().1)
    }

    /// After blocking: no longer requests a kick.
    pub fn disarm(&self) {
        each!(self, ring => ring.set_need_kick(false));
    }
}
