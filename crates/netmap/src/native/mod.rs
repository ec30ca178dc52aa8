//! Any port in netmap mode: each of its queues is joined with a ring to send and a ring to receive, which programs have while
//! they are there. Without a program, what the port receives is dropped.
//!
//! A [`NativePort`] is the control side, a [`Joint`] moves the frames: by copying them, or by exchanging buffers ([`Place`]).
//! The rings are served as those of a VALE switch are; what the port has no room for waits in the ring, as with a card.

mod joint;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_memory::Mempool;
use ringpass_peer::{Kick, Signal};
use ringpass_port::{Error, Queues};
use serde_json::{Value, json};

use crate::server::{Refusal, ServedPort};
use crate::vale::{Monitor, Shared, kick};
use crate::{Buffers, Direction, Place, Served};

pub use joint::Joint;

/// See the module.
pub struct NativePort {
    /// By queue.
    pairs: Vec<Arc<Shared>>,
    kick: Arc<Kick>,
    dropped: Arc<AtomicU64>,
}

impl NativePort {
    /// Of a port's queues. `pool` is where frames are copied to, in 64 buffers each at most, or the pool of the exchange, if
    /// rings are joined by that; the port's packets are of it too then. Up to `batch` (1 to 256) are moved at a time.
    pub fn new(queues: Vec<Queues>, pool: &Mempool, batch: usize) -> Result<(Self, Joint), Error> {
        let (kick, dropped) = (kick()?, Arc::new(AtomicU64::new(0)));
        let pairs: Vec<_> = queues.iter().map(|_| Shared::new(&kick)).collect();
        let rings = pairs.iter().map(|pair| pair.queues(pool)).collect::<Result<Vec<_>, _>>()?;
        let joint = Joint::new(queues.into_iter().zip(rings), batch, dropped.clone());
        Ok((Self { pairs, kick, dropped }, joint))
    }

    /// How many queues it has: as many rings of each direction can be joined.
    pub fn queues(&self) -> usize {
        self.pairs.len()
    }

    /// Frames that were received and that no program had room for.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Joins rings in their first state, one of each direction with each queue, until what is returned is dropped. What is
    /// exchanged are frames that lie in one buffer; others are dropped and counted.
    ///
    /// # Panics
    /// If there are not as many of each direction as queues. The joint panics if frames are exchanged with another pool than its
    /// own.
    pub fn join(&self, served: Vec<Served>, place: &Place) -> Result<Box<dyn ServedPort>, Error> {
        let (tx, rx): (Vec<_>, Vec<_>) = served.into_iter().partition(|ring| ring.direction() == Direction::Tx);
        assert!(tx.len() == self.pairs.len() && rx.len() == self.pairs.len(), "a ring each way for each queue");
        let joined = Joined { pairs: self.pairs.clone(), kick: self.kick.clone() };
        for (pair, (tx, rx)) in self.pairs.iter().zip(tx.into_iter().zip(rx)) {
            pair.open(vec![tx, rx], place);
        }
        // Its queues look at other rings now.
        self.kick.wake();
        Ok(Box::new(joined))
    }
}

/// Rings that are joined with a port.
struct Joined {
    pairs: Vec<Arc<Shared>>,
    kick: Arc<Kick>,
}

impl ServedPort for Joined {
    fn kick(&self) -> BorrowedFd<'_> {
        self.kick.event()
    }

    fn listen(&mut self, number: u64, entries: u64, call: Signal) {
        self.pairs.iter().for_each(|pair| pair.listen(number, entries, &call));
    }

    fn ignore(&mut self, number: u64) {
        self.pairs.iter().for_each(|pair| pair.ignore(number));
    }

    /// Since the port is there, of each queue. Received is what programs have sent.
    fn counters(&self) -> Value {
        match &self.pairs[..] {
            [pair] => pair.counters.json(),
            pairs => json!(pairs.iter().map(|pair| pair.counters.json()).collect::<Vec<_>>()),
        }
    }

    fn monitor(&self, ways: [bool; 2], served: Vec<Served>, buffers: &Buffers) -> Result<Box<dyn ServedPort>, Refusal> {
        Monitor::open(self.pairs.clone(), ways, served, buffers)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.pairs.iter().for_each(|pair| pair.close());
    }
}
