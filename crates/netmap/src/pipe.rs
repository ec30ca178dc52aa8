//! Pipes: what one end sends is in the other's ring, by exchange of descriptors. No buffer is copied and nobody serves:
//! both ends work on memory that both may write, so each must trust the other with its frames; not with its own positions.
//!
//! A slot of the sender's ring and the slot with the same number of the receiver's are one and the same to both. Sending
//! copies the descriptor over; releasing copies it back, if the receiver has put another buffer there. The sender is the
//! *application* of a [`csb`](crate::csb) entry and the receiver its *server*: `head` is the first slot that was not sent,
//! `hwcur` the first that was not released.

use std::sync::Arc;

use crate::csb::{Csb, FromApplication, FromServer};
use crate::layout::RESERVED_BUFFERS;
use crate::{Direction, Flags, Positions, Ring, Slot, Wild};

/// What both ends of one direction share.
pub struct Exchange {
    /// Rings of the sender and of the receiver, with as many slots.
    pub sender: Ring,
    /// See `sender`.
    pub receiver: Ring,
    /// The CSB that both have, and the entry of this direction.
    pub csb: Arc<Csb>,
    /// See `csb`.
    pub entry: usize,
}

impl Exchange {
    /// Written by the sender.
    fn sent(&self) -> &FromApplication {
        self.csb.application(self.entry)
    }

    /// Written by the receiver.
    fn released(&self) -> &FromServer {
        self.csb.server(self.entry)
    }
}

/// Wakes the other end.
pub type Bell = Box<dyn Fn() + Send>;

/// The end that sends. Belongs to one thread.
pub struct Sender {
    exchange: Arc<Exchange>,
    positions: Positions,
    bell: Bell,
}

/// The end that receives. Belongs to one thread.
pub struct Receiver {
    exchange: Arc<Exchange>,
    positions: Positions,
    bell: Bell,
}

/// Why a sync failed. The ring begins again where it stood; its own slots stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This end's program said what cannot be.
    #[error("the program set {0}")]
    Own(Wild),
    /// The other end did.
    #[error("the other end of the pipe has moved to slot {0}, where it cannot be")]
    Peer(u32),
}

impl Sender {
    /// Of rings in their first state.
    pub fn new(exchange: &Arc<Exchange>, bell: Bell) -> Self {
        let slots = exchange.sender.slots().min(exchange.receiver.slots());
        Self { exchange: exchange.clone(), positions: Positions::new(Direction::Tx, slots), bell }
    }

    /// Sends what the program has given up, as far as frames are complete, and gives it back what was released.
    pub fn sync(&mut self) -> Result<(), Error> {
        let Exchange { sender, receiver, .. } = &*self.exchange;
        let (head, cur) = sender.said();
        let mut given = self.positions.check(head, cur).map_err(|wild| self.restart(wild))?;
        let first = self.positions.hwcur();
        let at = |n| self.positions.after(first, n);
        while given > 0 && sender.slot(at(given - 1)).flags.any(Flags::MORE_FRAGMENTS) {
            given -= 1;
        }
        for n in 0..given {
            receiver.set(at(n), sender.slot(at(n)));
        }
        self.positions.take(given);
        if given > 0 {
            let position = self.positions.hwcur();
            self.exchange.sent().write(position, position, 0);
            if self.exchange.released().wants_a_kick() {
                (self.bell)();
            }
        }
        self.reclaim()
    }

    /// The slots that the receiver has released are the program's again.
    fn reclaim(&mut self) -> Result<(), Error> {
        let (released, _) = self.exchange.released().read();
        let positions = &mut self.positions;
        // One slot before the first that was not released is nobody's.
        let oldest = positions.after(positions.hwtail(), 1);
        let back =
            if released < self.exchange.sender.slots() { positions.distance(oldest, released) } else { u32::MAX };
        if back > positions.free() {
            return Err(Error::Peer(released));
        }
        if back > 0 {
            positions.give(back);
            self.exchange.sender.tell(positions.hwtail());
        }
        Ok(())
    }

    /// Whether the program, which has read its ring and found it full, may sleep until the bell: says so to the other end,
    /// then looks once more.
    pub fn arm(&mut self) -> Result<bool, Error> {
        self.exchange.sent().want(true);
        let before = self.positions.hwtail();
        self.reclaim()?;
        Ok(before == self.positions.hwtail())
    }

    /// The program is awake.
    pub fn disarm(&self) {
        self.exchange.sent().want(false);
    }

    #[cold]
    fn restart(&self, wild: Wild) -> Error {
        self.exchange.sender.restart(self.positions);
        Error::Own(wild)
    }
}

impl Receiver {
    /// Of rings in their first state.
    pub fn new(exchange: &Arc<Exchange>, bell: Bell) -> Self {
        let slots = exchange.sender.slots().min(exchange.receiver.slots());
        Self { exchange: exchange.clone(), positions: Positions::new(Direction::Rx, slots), bell }
    }

    /// Releases what the program has given up, then shows it what has come.
    pub fn sync(&mut self) -> Result<(), Error> {
        let Exchange { sender, receiver, .. } = &*self.exchange;
        let (head, cur) = receiver.said();
        let given = self.positions.check(head, cur).map_err(|wild| self.restart(wild))?;
        let first = self.positions.hwcur();
        for position in (0..given).map(|n| self.positions.after(first, n)) {
            let slot = receiver.slot(position);
            if slot.flags.any(Flags::BUFFER_CHANGED) && slot.buffer >= RESERVED_BUFFERS {
                sender.set(position, Slot { len: 0, pointer: 0, flags: Flags::BUFFER_CHANGED, ..slot });
            }
        }
        self.positions.take(given);
        if given > 0 {
            self.exchange.released().write(self.positions.hwcur(), 0);
            if self.exchange.sent().wants_a_call() {
                (self.bell)();
            }
        }
        self.collect()
    }

    /// What the sender has sent is the program's.
    fn collect(&mut self) -> Result<(), Error> {
        let (head, _, _) = self.exchange.sent().read();
        let positions = &mut self.positions;
        let come =
            if head < self.exchange.receiver.slots() { positions.distance(positions.hwtail(), head) } else { u32::MAX };
        if come > positions.free() {
            return Err(Error::Peer(head));
        }
        if come > 0 {
            positions.give(come);
            self.exchange.receiver.tell(positions.hwtail());
        }
        Ok(())
    }

    /// As [`Sender::arm`], for a program that has found its ring empty.
    pub fn arm(&mut self) -> Result<bool, Error> {
        self.exchange.released().want(true);
        let before = self.positions.hwtail();
        self.collect()?;
        Ok(before == self.positions.hwtail())
    }

    /// The program is awake.
    pub fn disarm(&self) {
        self.exchange.released().want(false);
    }

    #[cold]
    fn restart(&self, wild: Wild) -> Error {
        self.exchange.receiver.restart(self.positions);
        Error::Own(wild)
    }
}
