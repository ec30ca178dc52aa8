//! Native ports: any port in netmap mode, with a Tx ring and an Rx ring for each of its queues. Without a
//! program, what the port receives is dropped.
//!
//! A [`NativePort`] is the control side; a [`RingForwarder`] moves the frames, either by copying or by
//! exchanging buffers, if their region has a pool ([`Region::exchange`]). The rings are served like those of a VALE switch. Frames that the
//! port has no room for wait in the ring, as with a card.

mod ring_forwarder;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_ipc::{EventNotifier, WakeFd};
use ringpass_memory::Mempool;
use ringpass_netmap::{Buffers, Direction, Kring, Region};
use ringpass_port::{Error, QueuePair};
use serde_json::{Value, json};

use crate::BufferAccess;
use crate::server::{RequestError, ServedPort};
use crate::vale::{Monitor, Shared, kick};

pub use ring_forwarder::RingForwarder;

/// Control side of a native port.
pub struct NativePort {
    /// One entry for each queue.
    pairs: Vec<Arc<Shared>>,
    kick: Arc<WakeFd>,
    dropped: Arc<AtomicU64>,
}

impl NativePort {
    /// Creates a native port from a port's queues, with the forwarder that moves its frames.
    ///
    /// `pool` is the pool that frames are copied to, in at most 64 buffers each. If rings exchange buffers it
    /// is the exchange's pool, and the port's packets must be of it, too. `batch` (1 to 256) is the largest
    /// number of frames moved at a time.
    pub fn new(queues: Vec<QueuePair>, pool: &Mempool, batch: usize) -> Result<(Self, RingForwarder), Error> {
        let (kick, dropped) = (kick()?, Arc::new(AtomicU64::new(0)));
        let pairs: Vec<_> = queues.iter().map(|_| Shared::new(&kick)).collect();
        let rings = pairs.iter().map(|pair| pair.queues(pool)).collect::<Result<Vec<_>, _>>()?;
        let ring_forwarder = RingForwarder::new(queues.into_iter().zip(rings), batch, dropped.clone());
        Ok((Self { pairs, kick, dropped }, ring_forwarder))
    }

    /// Number of queues. A program's port has as many rings of each direction.
    pub fn queues(&self) -> usize {
        self.pairs.len()
    }

    /// Received frames that were dropped, because no program had room for them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Attaches rings of a region in their initial state, one of each direction to each queue, until the returned value is
    /// dropped. If buffers are exchanged, only frames that lie in one buffer pass; others are dropped and
    /// counted.
    ///
    /// # Panics
    /// If there are not as many rings of each direction as queues. The forwarder panics if frames are exchanged
    /// with another pool than its own.
    pub fn join(&self, served: Vec<Kring>, region: &Region) -> Result<Box<dyn ServedPort>, Error> {
        let (tx, rx): (Vec<_>, Vec<_>) = served.into_iter().partition(|ring| ring.direction() == Direction::Tx);
        assert!(tx.len() == self.pairs.len() && rx.len() == self.pairs.len(), "a ring each way for each queue");
        let buffer_access = BufferAccess::of(region);
        let joined = AttachedRings { pairs: self.pairs.clone(), kick: self.kick.clone() };
        for (pair, (tx, rx)) in self.pairs.iter().zip(tx.into_iter().zip(rx)) {
            pair.open(vec![tx, rx], &buffer_access);
        }
        // Wakes the forwarder, which now polls other rings.
        self.kick.wake();
        Ok(Box::new(joined))
    }
}

/// Rings that are attached to a native port.
struct AttachedRings {
    pairs: Vec<Arc<Shared>>,
    kick: Arc<WakeFd>,
}

impl ServedPort for AttachedRings {
    fn kick(&self) -> BorrowedFd<'_> {
        self.kick.event()
    }

    fn subscribe(&mut self, number: u64, entries: u64, call: EventNotifier) {
        self.pairs.iter().for_each(|pair| pair.subscribe(number, entries, &call));
    }

    fn unsubscribe(&mut self, number: u64) {
        self.pairs.iter().for_each(|pair| pair.unsubscribe(number));
    }

    /// Counters of each queue since the port was created. Received frames are those that programs have sent.
    fn counters(&self) -> Value {
        match &self.pairs[..] {
            [pair] => pair.counters.json(),
            pairs => json!(pairs.iter().map(|pair| pair.counters.json()).collect::<Vec<_>>()),
        }
    }

    fn monitor(
        &self,
        ways: [bool; 2],
        served: Vec<Kring>,
        buffers: &Buffers,
    ) -> Result<Box<dyn ServedPort>, RequestError> {
        Monitor::open(self.pairs.clone(), ways, served, buffers)
    }
}

impl Drop for AttachedRings {
    fn drop(&mut self) {
        self.pairs.iter().for_each(|pair| pair.close());
    }
}
