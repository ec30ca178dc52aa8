//! The rings of one direction, as the switch's queue and the control side reach them.

use ringpass_peer::Signal;
use ringpass_port::Turns;

use super::counters::Counters;
use crate::{Place, Served, Slot, Wild};

/// Shared by a queue and the control side. Empty when the port has ended.
pub(crate) type Lanes = Turns<Option<Lane>>;

/// See the module.
pub(crate) struct Lane {
    pub(crate) rings: Vec<LaneRing>,
    pub(crate) place: Place,
    pub(crate) listeners: Vec<Listener>,
}

/// A program that wants to be woken.
pub(crate) struct Listener {
    pub(crate) number: u64,
    /// By rings with these entries of the CSB.
    pub(crate) entries: u64,
    pub(crate) call: Signal,
}

/// A ring, and how its program has behaved.
pub(crate) struct LaneRing {
    pub(crate) served: Served,
    /// The next slots are the rest of a frame that was dropped.
    pub(crate) skipping: bool,
    /// How often it may still be put back. With none left it stands still.
    patience: u32,
}

/// A program that is merely wrong is told by its own side before anything comes here.
const PATIENCE: u32 = 100;

impl Lane {
    pub(crate) fn new(served: Vec<Served>, place: Place) -> Self {
        let ring = |served| LaneRing { served, skipping: false, patience: PATIENCE };
        Self { rings: served.into_iter().map(ring).collect(), place, listeners: Vec::new() }
    }

    /// Wakes programs that wait for a ring with one of these entries.
    #[cold]
    pub(crate) fn call(&self, entries: u64) {
        self.listeners.iter().filter(|listener| listener.entries & entries != 0).for_each(|one| one.call.raise());
    }
}

impl LaneRing {
    /// How many slots the program has given up; none if the ring stands still.
    #[inline]
    pub(crate) fn look(&mut self, place: &Place, counters: &Counters) -> u32 {
        match self.served.look() {
            Ok(given) if self.patience > 0 => given,
            Ok(_) => 0,
            Err(wild) => {
                self.reset(place, counters, wild);
                0
            }
        }
    }

    /// How many slots frames can be put into; none if the ring stands still.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        if self.patience > 0 { self.served.room() } else { 0 }
    }

    /// Puts both sides to where the server stands; slots that say what cannot be lose that.
    #[cold]
    fn reset(&mut self, place: &Place, counters: &Counters, why: Wild) {
        let Some(patience) = self.patience.checked_sub(1) else { return };
        self.patience = patience;
        counters.reset(|| format!("ring {}: {why}", self.served.entry()));
        let ring = self.served.ring();
        for position in 0..ring.slots() {
            let slot = ring.slot(position);
            if !place.holds(slot.buffer, 0) {
                ring.set(position, Slot::default());
            } else if usize::from(slot.len) > place.size() {
                ring.set(position, Slot { len: 0, ..slot });
            }
        }
        self.skipping = false;
        self.served.restart();
    }

    /// Tells the program where the ring stands. Returns its entry's bit, if the program wants to be called.
    #[inline]
    pub(crate) fn tell(&self) -> u64 {
        u64::from(self.served.tell()) << (self.served.entry() & 63)
    }
}
