//! Ports of a VALE switch: the switch receives the frames that programs put into their rings, and copies the
//! frames that it sends into buffers of their rings. Each port has memory of its own, so programs of one port
//! cannot see frames of another.
//!
//! A [`RingPort`] is the control side; its [`QueuePair`] belong to the switch. They share the rings under one lock
//! for each direction, which is taken once a burst. When the control side has removed the rings, the port's
//! memory is not accessed any more.
//!
//! Everything that a program can write is read once and validated. Invalid positions reset the ring to the
//! switch's positions, a limited number of times. A slot with an invalid buffer or length is counted and
//! skipped. Both affect that ring only.

mod copier;
mod counters;
mod exchange;
mod forwarded;
mod frame;
pub(crate) mod header;
mod monitor;
mod offloading_tx;
mod ring_set;
mod rx;
mod select_ring;
mod tx;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ringpass_ipc::{EventNotifier, WakeFd};
use ringpass_memory::Mempool;
use ringpass_netmap::run::MAX_FRAME_LEN;
use ringpass_netmap::{Direction, Kring, Offsets, Positions, Region};
use ringpass_port::{Error, QueuePair, Stats};
use serde_json::Value;

use crate::BufferAccess;
use crate::server::{RequestError, ServedPort, ServedRings, Watched};
use counters::Counters;
pub(crate) use forwarded::Forwarded;
use monitor::Monitors;
pub(crate) use monitor::{Monitor, Part};
use offloading_tx::OffloadingTx;
use ring_set::{RingSet, SharedRingSet, Subscriber};
use rx::Rx;
use tx::Tx;

/// Largest number of the pool's buffers that a frame takes.
const MAX_FRAME_BUFFERS: usize = 64;

/// Creates the eventfd by which programs wake a port's queues.
pub(crate) fn kick() -> Result<Arc<WakeFd>, Error> {
    let kick = WakeFd::new().map_err(|source| Error::os("an eventfd to kick", source))?;
    Ok(Arc::new(kick))
}

/// State that a port shares with its queues.
pub(crate) struct Shared {
    /// Rings that programs send by (`SENDING`), and rings that they receive by (`RECEIVING`).
    ring_sets: [SharedRingSet; 2],
    /// Monitors of either direction.
    monitors: [Monitors; 2],
    kick: Arc<WakeFd>,
    /// Bytes of the header in front of each frame.
    header_len: AtomicUsize,
    pub(crate) counters: Counters,
}

const SENDING: usize = 0;
const RECEIVING: usize = 1;

impl Shared {
    /// Creates the state without rings. Several may have the same `kick`.
    pub(crate) fn new(kick: &Arc<WakeFd>) -> Arc<Self> {
        let ring_sets = [(); 2].map(|()| SharedRingSet::new(None));
        Arc::new(Self {
            ring_sets,
            monitors: Default::default(),
            kick: kick.clone(),
            header_len: Default::default(),
            counters: Default::default(),
        })
    }

    /// Creates the queues, which work on the rings that are open at any time. `pool` is the pool that frames
    /// are copied to, in at most 64 buffers each.
    pub(crate) fn queues(self: &Arc<Self>, pool: &Mempool) -> Result<QueuePair, Error> {
        if pool.buffer_size() * MAX_FRAME_BUFFERS < MAX_FRAME_LEN {
            let least = MAX_FRAME_LEN / MAX_FRAME_BUFFERS;
            return Err(Error::Config(format!("netmap ports need packet buffers of {least} bytes or more")));
        }
        Ok(QueuePair { rx: Box::new(Rx::new(self, pool)), tx: Box::new(OffloadingTx::new(self, pool)) })
    }

    /// Opens rings, with access to their buffers.
    pub(crate) fn open(&self, served: Vec<Kring>, buffer_access: &BufferAccess) {
        let (tx, rx): (Vec<_>, Vec<_>) = served.into_iter().partition(|ring| ring.direction() == Direction::Tx);
        for (ring_set, rings) in self.ring_sets.iter().zip([tx, rx]) {
            *ring_set.lock() = Some(RingSet::new(rings, buffer_access.clone()));
        }
    }

    /// Closes the rings; from here on nobody accesses them.
    pub(crate) fn close(&self) {
        self.leave(None);
    }

    /// Closes the rings, of which `held` are not served. Returns the positions at which they are left, by their entries in the CSB.
    fn leave(&self, held: Option<RingSet>) -> Vec<Positions> {
        // Dropped after the locks were released, because this may unmap memory.
        let served = self.ring_sets.iter().filter_map(|ring_set| ring_set.lock().take());
        let taken: Vec<_> = served.chain(held).collect();
        let rings = taken.iter().flat_map(|ring_set| &ring_set.rings);
        let mut left: Vec<_> = rings.map(|ring| (ring.kring.entry(), ring.kring.positions())).collect();
        left.sort_by_key(|&(entry, _)| entry);
        left.into_iter().map(|(_, positions)| positions).collect()
    }

    /// Adds a program that wants to be woken for some rings: bit N of `entries` stands for entry N of the CSB.
    pub(crate) fn subscribe(&self, number: u64, entries: u64, call: &EventNotifier) {
        self.unsubscribe(number);
        for ring_set in &self.ring_sets {
            if let Some(ring_set) = ring_set.lock().as_mut() {
                ring_set.subscribers.push(Subscriber { number, entries, call: call.clone() });
            }
        }
    }

    /// Removes a program that wanted to be woken.
    pub(crate) fn unsubscribe(&self, number: u64) {
        for ring_set in &self.ring_sets {
            if let Some(ring_set) = ring_set.lock().as_mut() {
                ring_set.subscribers.retain(|subscriber| subscriber.number != number);
            }
        }
    }

    /// Sets where frames begin in the buffers of each ring, by its entry in the CSB.
    pub(crate) fn set_offsets(&self, offsets: &dyn Fn(usize) -> Offsets) {
        for ring_set in &self.ring_sets {
            for ring in ring_set.lock().iter_mut().flat_map(|ring_set| &mut ring_set.rings) {
                ring.kring.set_offsets(offsets(ring.kring.entry()));
            }
        }
    }

    /// Bytes of the header in front of each frame.
    #[inline]
    fn header_len(&self) -> usize {
        self.header_len.load(Relaxed)
    }

    fn sending(&self) -> &SharedRingSet {
        &self.ring_sets[SENDING]
    }

    fn receiving(&self) -> &SharedRingSet {
        &self.ring_sets[RECEIVING]
    }
}

/// Control side of a port of a VALE switch. The port ends when this is dropped; its queues are idle from then
/// on.
pub struct RingPort {
    shared: Arc<Shared>,
    /// The rings that programs send by, while they are not served.
    held: Option<RingSet>,
}

impl RingPort {
    /// Creates a port from its rings; returns it with its queues. `pool` is the pool that frames are copied to, in at most 64 buffers each.
    pub fn new(
        ServedRings { rings, buffers, kick, held }: ServedRings,
        pool: &Mempool,
    ) -> Result<(Self, QueuePair), Error> {
        let shared = Shared::new(&kick);
        let queues = shared.queues(pool)?;
        // Nobody has the queues yet.
        shared.open(rings, &buffers.into());
        let mut port = Self { shared, held: None };
        port.hold(held);
        Ok((port, queues))
    }

    /// Counters of the port. Received frames are those that the switch has received.
    pub fn stats(&self) -> Stats {
        self.shared.counters.stats()
    }

    /// How often a ring was reset to the switch's positions.
    pub fn resets(&self) -> u64 {
        self.shared.counters.resets()
    }

    /// Number of slots with an invalid buffer or length, or with an indirect frame.
    pub fn bad_slots(&self) -> u64 {
        self.shared.counters.bad_slots()
    }

    /// The first error of a program, if there was one.
    pub fn fault(&self) -> Option<String> {
        self.shared.counters.fault()
    }
}

impl ServedPort for RingPort {
    fn kick(&self) -> BorrowedFd<'_> {
        self.shared.kick.event()
    }

    fn subscribe(&mut self, number: u64, entries: u64, call: EventNotifier) {
        self.shared.subscribe(number, entries, &call);
        if let Some(held) = &mut self.held {
            held.subscribers.push(Subscriber { number, entries, call });
        }
    }

    fn unsubscribe(&mut self, number: u64) {
        self.shared.unsubscribe(number);
    }

    fn set_offsets(&mut self, offsets: &dyn Fn(usize) -> Offsets) {
        self.shared.set_offsets(offsets);
    }

    fn hold(&mut self, held: bool) {
        let mut sending = self.shared.sending().lock();
        if held {
            self.held = self.held.take().or_else(|| sending.take());
        } else if let Some(held) = self.held.take() {
            *sending = Some(held);
        }
    }

    fn leave(&mut self) -> Option<Vec<Positions>> {
        // The rings that are held are not served again, not even for a moment: what they have would go to ports that have been left.
        Some(self.shared.leave(self.held.take()))
    }

    fn counters(&self) -> Value {
        self.shared.counters.json()
    }

    fn header_len(&self) -> usize {
        self.shared.header_len()
    }

    fn set_header_len(&mut self, len: usize) -> bool {
        self.shared.header_len.store(len, Relaxed);
        true
    }

    fn monitor(
        &self,
        watched: Watched,
        served: Vec<Kring>,
        region: &Region,
    ) -> Result<Box<dyn ServedPort>, RequestError> {
        Monitor::open(vec![Part { shared: self.shared.clone(), first: 0 }], watched, served, region)
    }
}

impl Drop for RingPort {
    fn drop(&mut self) {
        self.shared.close();
    }
}
