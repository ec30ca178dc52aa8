//! A bridge that forwards frames between two ports.

use std::time::Duration;

use ringpass_netmap::client::{Error, Port, wait};
use ringpass_netmap::{Flags, PortRing, Slot};
use ringpass_port::{SharedWaitPolicy, WaitPolicy};

/// Two ports whose frames are forwarded to each other. Rx ring N of one is forwarded to Tx ring N of the other,
/// modulo the number of the other's rings.
pub struct Bridge {
    ports: [Port; 2],
    zero_copy: bool,
    batch: u32,
    waiting: SharedWaitPolicy,
    /// Frames received from the first port, and from the second.
    pub frames: [u64; 2],
    /// Slots with an invalid buffer or length.
    pub faulty: u64,
}

impl Bridge {
    /// Creates a bridge that moves up to `batch` slots at a time. Without `copy`, ports in the same memory
    /// exchange buffers; all others are copied.
    pub fn new(ports: [Port; 2], copy: bool, batch: u32, policy: WaitPolicy) -> Self {
        let zero_copy = !copy && ports[0].granted().memory_id == ports[1].granted().memory_id;
        Self { ports, zero_copy, batch, waiting: policy.into(), frames: [0; 2], faulty: 0 }
    }

    /// Whether buffers are exchanged instead of copied.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// How often either port's other side was woken.
    pub fn kicks_sent(&self) -> u64 {
        self.ports.iter().map(Port::kicks_sent).sum()
    }

    /// Moves all available frames both ways, up to a batch for each ring. Returns the number of slots.
    pub fn forward(&mut self) -> Result<usize, Error> {
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
                rx.release_slots(slots);
                tx.release_slots(slots);
                tx.sync().map_err(|error| to.failed(error))?;
                rx.sync().map_err(|error| from.failed(error))?;
                moved += slots as usize;
            }
        }
        Ok(moved)
    }

    /// Forwards the first `slots` slots of a ring to another. Returns how many of them were faulty.
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
                // A faulty slot is passed on without a frame, so that the order of the others is kept.
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
                // Wait for Tx room if frames are pending, else for frames: room alone is of no use.
                rings.push(if rx.own() > 0 { (to, tx) } else { (from, rx) });
            }
        }
        wait(rings.iter().copied(), &self.waiting, limit).map(drop)
    }
}
