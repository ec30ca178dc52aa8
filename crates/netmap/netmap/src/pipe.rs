//! Pipes: slots that one end sends appear in the other end's ring, by exchange of descriptors.
//!
//! No buffer is copied and no server is involved. Both ends work on memory that both may write, so each trusts
//! the other with its frames, but not with its own process.
//!
//! Slot N of the sender's ring and slot N of the receiver's ring belong together. Sending copies the descriptor
//! to the receiver; releasing copies it back if the receiver has put another buffer there. The sender is the
//! *application* of a [`csb`](crate::csb) entry and the receiver its *server*: `head` is the first slot that
//! was not sent, `hwcur` the first that was not released. As for every ring of a program, all state is in the
//! CSB; each end only caches what it has read last, because reading the other end's fields costs a cache line
//! from another core.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::csb::{Answered, Csb, Locked};
use crate::layout::RESERVED_BUFFERS;
use crate::position_cache::PositionCache;
use crate::ring_lock::Owned;
use crate::tap::TapWriter;
use crate::{Flags, Notifier, Positions, Ring, SyncError};

/// State that both ends of one direction share.
pub(crate) struct PipeChannel {
    /// Ring of the sender.
    pub(crate) sender: Ring,
    /// Ring of the receiver, with as many slots.
    pub(crate) receiver: Ring,
    /// CSB that both ends share. Kick requests use a separate entry, [`NEED_KICK_OFFSET`] after `entry`: they
    /// change seldom, so their cache line stays with the core that reads it.
    pub(crate) csb: Arc<Csb>,
    /// Index of this direction's entry in `csb`.
    pub(crate) entry: usize,
    /// Wakes the other end.
    pub(crate) notify: Notifier,
    answered: Answered,
}

/// Distance from the entry with a direction's positions to the one with its kick requests.
pub(crate) const NEED_KICK_OFFSET: usize = 2;

impl PipeChannel {
    /// Creates the state from the sender's and the receiver's ring.
    pub(crate) fn new([sender, receiver]: [Ring; 2], csb: &Arc<Csb>, entry: usize, notify: &Notifier) -> Self {
        Self { sender, receiver, csb: csb.clone(), entry, notify: notify.clone(), answered: Answered::default() }
    }

    /// First slot that was not sent.
    fn sent(&self) -> u32 {
        self.csb.read_atok(self.entry).head
    }

    /// First slot that was not released.
    fn released(&self) -> u32 {
        self.csb.read_ktoa(self.entry).0
    }

    /// Takes the lock of an end, which has its own entry. Returns it after the end has forgotten what another process may have
    /// changed.
    #[inline]
    fn lock(&self, entry: usize, cache: &PositionCache) -> Result<Option<Owned<'_>>, Locked> {
        let owned = self.csb.lock(entry)?;
        if owned.as_ref().is_some_and(|owned| owned.handed_over) {
            cache.clear();
        }
        Ok(owned)
    }

    /// Number of slots that both rings have.
    fn slots(&self) -> u32 {
        self.sender.slots().min(self.receiver.slots())
    }
}

/// The sending end of a pipe.
pub(crate) struct Sender(PipeChannel, PositionCache, Option<TapWriter>);

/// The receiving end of a pipe.
pub(crate) struct Receiver(PipeChannel, PositionCache);

impl Sender {
    /// Creates the sending end, of rings in any state.
    pub(crate) fn new(exchange: PipeChannel) -> Self {
        Self(exchange, PositionCache::default(), None)
    }

    /// Copies frames to this log as long as there are monitors.
    pub(crate) fn set_tap(&mut self, tap: TapWriter) {
        self.2 = Some(tap);
    }

    /// The ring.
    pub(crate) fn ring(&self) -> &Ring {
        &self.0.sender
    }

    /// Reads where the ring stands: the program owns the slots that the other end has released, except the one
    /// before them.
    #[inline]
    pub(crate) fn positions(&self) -> Result<Positions, SyncError> {
        let slots = self.0.slots();
        let sent = self.passed();
        let released = self.0.released();
        let tail = released.checked_sub(1).unwrap_or(slots - 1);
        let positions = Positions::at(slots, sent, tail).ok_or(SyncError::Peer(sent, released))?;
        self.1.set(&positions);
        Ok(positions)
    }

    pub(crate) fn passed(&self) -> u32 {
        self.0.sent()
    }

    /// Takes the lock of this end.
    #[inline]
    pub(crate) fn lock(&self) -> Result<Option<Owned<'_>>, Locked> {
        self.0.lock(self.0.entry, &self.1)
    }

    /// Sends the slots that the program has released, up to the last complete frame.
    #[inline]
    pub(crate) fn pass(&self, head: u32, cur: u32) -> Result<Positions, SyncError> {
        let PipeChannel { sender, receiver, notify, csb, entry, answered } = &self.0;
        // The cache suffices if there are slots to send and half of the ring is left. Otherwise read what was
        // released.
        let position_cache = self.1.get(self.0.slots(), self.passed());
        let known = position_cache.filter(|position_cache| {
            position_cache.check(head, cur).is_ok_and(|given| given > 0 && position_cache.leaves_half(head))
        });
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
            // This line is read below anyway, and written only by who sleeps.
            if csb.is_watched(entry + NEED_KICK_OFFSET)
                && let Some(tap) = &self.2
            {
                // A copy, so that the loop above can keep the positions in registers.
                let sent = positions;
                let offsets = sender.header().offset_mask.load(Relaxed);
                tap.write((0..given).map(move |n| sender.slot(sent.after(first, n))), offsets);
            }
            positions.advance_hwcur(given);
            csb.write_atok(*entry, positions.hwcur(), cur, 0);
            self.1.set(&positions);
            if csb.kern_asks_for_kick(entry + NEED_KICK_OFFSET, answered) {
                notify();
            }
        }
        Ok(positions)
    }

    pub(crate) fn set_need_kick(&self, call: bool) {
        self.0.csb.set_appl_need_kick(self.0.entry + NEED_KICK_OFFSET, call);
    }
}

impl Receiver {
    /// Creates the receiving end, of rings in any state.
    pub(crate) fn new(exchange: PipeChannel) -> Self {
        Self(exchange, PositionCache::default())
    }

    /// The ring.
    pub(crate) fn ring(&self) -> &Ring {
        &self.0.receiver
    }

    /// Reads where the ring stands: the program owns the slots that the other end has sent.
    #[inline]
    pub(crate) fn positions(&self) -> Result<Positions, SyncError> {
        let (sent, released) = (self.0.sent(), self.passed());
        let positions = Positions::at(self.0.slots(), released, sent).ok_or(SyncError::Peer(sent, released))?;
        self.1.set(&positions);
        Ok(positions)
    }

    pub(crate) fn passed(&self) -> u32 {
        self.0.released()
    }

    /// Takes the lock of this end.
    #[inline]
    pub(crate) fn lock(&self) -> Result<Option<Owned<'_>>, Locked> {
        self.0.lock(self.0.entry + NEED_KICK_OFFSET, &self.1)
    }

    /// Returns the slots that the program has released to the sender.
    #[inline]
    pub(crate) fn pass(&self, head: u32, cur: u32) -> Result<Positions, SyncError> {
        let PipeChannel { sender, receiver, notify, csb, entry, answered } = &self.0;
        let position_cache =
            self.1.get(self.0.slots(), self.passed()).filter(|position_cache| position_cache.check(head, cur).is_ok());
        let positions = position_cache.map_or_else(|| self.positions(), Ok)?;
        let (given, first) = (positions.check(head, cur)?, positions.hwcur());
        for position in (0..given).map(|n| positions.after(first, n)) {
            let slot = receiver.slot(position);
            if slot.flags.any(Flags::BUFFER_CHANGED) && slot.buffer >= RESERVED_BUFFERS {
                // Its pointer stays, as it may have an offset.
                sender.set_frame(position, slot.buffer, 0, Flags::BUFFER_CHANGED);
            }
        }
        if given > 0 {
            csb.write_ktoa(*entry, positions.after(first, given), 0);
            if csb.appl_asks_for_kick(entry + NEED_KICK_OFFSET, answered) {
                notify();
            }
        }
        self.positions()
    }

    pub(crate) fn set_need_kick(&self, call: bool) {
        self.0.csb.set_kern_need_kick(self.0.entry + NEED_KICK_OFFSET, call);
    }
}
