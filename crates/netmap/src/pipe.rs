//! Pipes: what one end sends is in the other's ring, by exchange of descriptors. No buffer is copied and nobody serves:
//! both ends work on memory that both may write, so each must trust the other with its frames; not with its own process.
//!
//! A slot of the sender's ring and the slot with the same number of the receiver's are one and the same to both. Sending
//! copies the descriptor over; releasing copies it back, if the receiver has put another buffer there. The sender is the
//! *application* of a [`csb`](crate::csb) entry and the receiver its *server*: `head` is the first slot that was not sent,
//! `hwcur` the first that was not released. As for any ring of a program's, all state is there; what an end has seen last
//! it remembers, because a look at the other's words costs a cache line from another core.

use std::sync::Arc;

use crate::csb::{Csb, FromApplication, FromServer};
use crate::layout::RESERVED_BUFFERS;
use crate::seen::Seen;
use crate::{Bell, Flags, Positions, Ring, Slot, SyncError};

/// What both ends of one direction share.
pub struct Exchange {
    /// Rings of the sender and of the receiver, with as many slots.
    pub sender: Ring,
    /// See `sender`.
    pub receiver: Ring,
    /// The CSB that both have, and the entry of this direction. Who wants to be woken stands in an entry of its own,
    /// [`WISHES`] behind it: that changes seldom, and so stays in the cache of whoever looks.
    pub csb: Arc<Csb>,
    /// See `csb`.
    pub entry: usize,
    /// Wakes the other end.
    pub bell: Bell,
}

/// See [`Exchange::csb`].
pub const WISHES: usize = 2;

impl Exchange {
    /// Written by the sender.
    fn sent(&self) -> &FromApplication {
        self.csb.application(self.entry)
    }

    /// Written by the receiver.
    fn released(&self) -> &FromServer {
        self.csb.server(self.entry)
    }

    /// How many slots both rings have.
    fn slots(&self) -> u32 {
        self.sender.slots().min(self.receiver.slots())
    }
}

/// The end that sends.
pub struct Sender(Exchange, Seen);

/// The end that receives.
pub struct Receiver(Exchange, Seen);

impl Sender {
    /// The end that sends, of rings in whatever state.
    pub fn new(exchange: Exchange) -> Self {
        Self(exchange, Seen::default())
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.0.sender
    }

    /// As the other end tells now: what it has released is the program's, but for the slot before it.
    #[inline]
    pub(crate) fn positions(&self) -> Result<Positions, SyncError> {
        let (slots, sent, released) = (self.0.slots(), self.passed(), self.0.released().read().0);
        let tail = released.checked_sub(1).unwrap_or(slots - 1);
        let positions = Positions::at(slots, sent, tail).ok_or(SyncError::Peer(sent, released))?;
        self.1.set(&positions);
        Ok(positions)
    }

    pub(crate) fn passed(&self) -> u32 {
        self.0.sent().read().0
    }

    /// Sends what the program has given up, as far as frames are complete.
    #[inline]
    pub(crate) fn pass(&self, head: u32, cur: u32) -> Result<Positions, SyncError> {
        let Exchange { sender, receiver, bell, csb, entry, .. } = &self.0;
        // With little room left, and for who wants nothing but room, what was released is looked for.
        let seen = self.1.get(self.0.slots(), self.passed());
        let known = seen.filter(|seen| seen.check(head, cur).is_ok_and(|given| given > 0 && seen.leaves_half(head)));
        let mut positions = known.map_or_else(|| self.positions(), Ok)?;
        let mut given = positions.check(head, cur)?;
        let first = positions.hwcur();
        let at = |n| positions.after(first, n);
        while given > 0 && sender.slot(at(given - 1)).flags.any(Flags::MORE_FRAGMENTS) {
            given -= 1;
        }
        for n in 0..given {
            receiver.set_new(at(n), sender.slot(at(n)));
        }
        if given > 0 {
            positions.take(given);
            self.0.sent().write(positions.hwcur(), cur, 0);
            self.1.set(&positions);
            if csb.server(entry + WISHES).wants_a_kick() {
                bell();
            }
        }
        Ok(positions)
    }

    pub(crate) fn want(&self, call: bool) {
        self.0.csb.application(self.0.entry + WISHES).want(call);
    }
}

impl Receiver {
    /// The end that receives, of rings in whatever state.
    pub fn new(exchange: Exchange) -> Self {
        Self(exchange, Seen::default())
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.0.receiver
    }

    /// As the other end tells now: what it has sent is the program's.
    #[inline]
    pub(crate) fn positions(&self) -> Result<Positions, SyncError> {
        let (sent, released) = (self.0.sent().read().0, self.passed());
        let positions = Positions::at(self.0.slots(), released, sent).ok_or(SyncError::Peer(sent, released))?;
        self.1.set(&positions);
        Ok(positions)
    }

    pub(crate) fn passed(&self) -> u32 {
        self.0.released().read().0
    }

    /// Releases what the program has given up.
    #[inline]
    pub(crate) fn pass(&self, head: u32, cur: u32) -> Result<Positions, SyncError> {
        let Exchange { sender, receiver, bell, csb, entry, .. } = &self.0;
        let seen = self.1.get(self.0.slots(), self.passed()).filter(|seen| seen.check(head, cur).is_ok());
        let positions = seen.map_or_else(|| self.positions(), Ok)?;
        let (given, first) = (positions.check(head, cur)?, positions.hwcur());
        for position in (0..given).map(|n| positions.after(first, n)) {
            let slot = receiver.slot(position);
            if slot.flags.any(Flags::BUFFER_CHANGED) && slot.buffer >= RESERVED_BUFFERS {
                sender.set(position, Slot { len: 0, pointer: 0, flags: Flags::BUFFER_CHANGED, ..slot });
            }
        }
        if given > 0 {
            self.0.released().write(positions.after(first, given), 0);
            if csb.application(entry + WISHES).wants_a_call() {
                bell();
            }
        }
        self.positions()
    }

    pub(crate) fn want(&self, call: bool) {
        self.0.csb.server(self.0.entry + WISHES).want(call);
    }
}
