//! A bridge between two ports: what comes from one goes to the other.

use std::time::Duration;

use crate::client::{Error, Port, wait};
use crate::{Flags, Patience, PortRing, Slot};

/// Two ports. Ring N of one goes to ring N of the other, round those that there are.
pub struct Bridge {
    ports: [Port; 2],
    zero_copy: bool,
    batch: u32,
    patience: Patience,
    /// Frames from the first port, and from the second.
    pub frames: [u64; 2],
    /// Slots whose buffer or length could not be.
    pub faulty: u64,
}

impl Bridge {
    /// Without copies, by exchange of buffers, if both have the same memory and `copy` is not wanted; otherwise frames are
    /// copied. Up to `batch` slots at a time.
    pub fn new(ports: [Port; 2], copy: bool, batch: u32) -> Self {
        let zero_copy = !copy && ports[0].granted().memory_id == ports[1].granted().memory_id;
        Self { ports, zero_copy, batch, patience: Patience::default(), frames: [0; 2], faulty: 0 }
    }

    /// Whether frames are not copied.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// How often either side was woken.
    pub fn rung(&self) -> u64 {
        self.ports.iter().map(Port::rung).sum()
    }

    /// Moves what there is, both ways. Returns how many slots.
    pub fn turn(&mut self) -> Result<usize, Error> {
        let mut moved = 0;
        for way in 0..2 {
            let (from, to) = (&self.ports[way], &self.ports[1 - way]);
            for (rx, tx) in from.rx().iter().zip(to.tx().iter().cycle()) {
                rx.sync().map_err(|error| from.failed(error))?;
                if rx.own() < self.batch.min(tx.own()) || tx.own() == 0 {
                    tx.sync().map_err(|error| to.failed(error))?;
                }
                let slots = rx.own().min(tx.own()).min(self.batch);
                if slots == 0 {
                    continue;
                }
                let faulty = self.pass(way, rx, tx, slots);
                self.faulty += faulty;
                self.frames[way] += u64::from(slots) - faulty;
                rx.give_up(slots);
                tx.give_up(slots);
                tx.sync().map_err(|error| to.failed(error))?;
                rx.sync().map_err(|error| from.failed(error))?;
                moved += slots as usize;
            }
        }
        Ok(moved)
    }

    /// Passes the first so many slots of a ring on to another. Returns how many were no frames.
    #[inline]
    fn pass(&self, way: usize, rx: &PortRing, tx: &PortRing, slots: u32) -> u64 {
        let (from, to) = (self.ports[way].buffers(), self.ports[1 - way].buffers());
        let mut faulty = 0;
        let (rx_ring, tx_ring) = (rx.ring(), tx.ring());
        for (at, out) in rx.first(slots).zip(tx.first(slots)) {
            let (came, goes) = (rx_ring.slot(at), tx_ring.slot(out));
            let more = Flags(came.flags.0 & Flags::MORE_FRAGMENTS.0);
            if self.zero_copy {
                tx_ring.set(out, Slot { flags: more | Flags::BUFFER_CHANGED, pointer: 0, ..came });
                rx_ring.set(at, Slot { flags: Flags::BUFFER_CHANGED, len: 0, ..goes });
            } else {
                // The slot goes on, so that others keep their order: with no frame in it.
                let copied = from.copy(came, to, goes);
                faulty += u64::from(!copied);
                tx_ring.set(out, Slot { len: if copied { came.len } else { 0 }, flags: more, ..goes });
            }
        }
        faulty
    }

    /// Waits until there is something to move, for at most `limit`.
    pub fn wait(&self, limit: Duration) -> Result<(), Error> {
        let mut rings = Vec::new();
        for way in 0..2 {
            let (from, to) = (&self.ports[way], &self.ports[1 - way]);
            for (rx, tx) in from.rx().iter().zip(to.tx().iter().cycle()) {
                // What has come waits for room; else room is of no use.
                rings.push(if rx.own() > 0 { (to, tx) } else { (from, rx) });
            }
        }
        wait(rings.iter().copied(), &self.patience, limit).map(drop)
    }
}
