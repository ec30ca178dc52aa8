//! Ports of a VALE switch: what programs put into their rings is received by the switch, what the switch sends is copied
//! into buffers of their rings. Each port has memory of its own, so that whoever has one sees no other's frames.
//!
//! A [`RingPort`] is the control side, its [`Queues`] are the switch's. They share the rings under a lock for each direction,
//! which is taken once a burst; the control side takes the rings out, and from then on nothing of the port's memory is
//! touched.
//!
//! All that a program can write is read once and checked. A position that cannot be puts the ring back to where the switch
//! stands, some times; a slot without a buffer or with too long a frame is counted and skipped. Either way only that ring
//! is concerned.

mod counters;
mod exchange;
mod frame;
mod lane;
mod monitor;
mod run;
mod rx;
mod spread;
mod tx;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringpass_memory::{Flags, Mempool};
use ringpass_peer::{Kick, Signal};
use ringpass_port::{Error, Queues, Software, Stats};
use serde_json::Value;

use crate::server::{Refusal, ServedPort};
use crate::{Buffers, Direction, Place, Served};
use counters::Counters;
use lane::{Lane, Lanes, Listener};
pub(crate) use monitor::Monitor;
use monitor::Monitors;
use rx::Rx;
use tx::Tx;

/// Longest frame, in bytes, in however many slots.
const LONGEST: usize = 1 << 16;
/// Shortest: an Ethernet header.
const SHORTEST: usize = 14;
/// Most buffers of the pool that a frame may take.
const MOST_BUFFERS: usize = 64;

/// What programs wake a port's queues by.
pub(crate) fn kick() -> Result<Arc<Kick>, Error> {
    let kick = Kick::new().map_err(|source| Error::Os { what: "an eventfd to kick".into(), source })?;
    Ok(Arc::new(kick))
}

/// What the port and its queues share.
pub(crate) struct Shared {
    /// What programs send, and what they receive.
    lanes: [Lanes; 2],
    /// Who else sees that.
    monitors: [Monitors; 2],
    kick: Arc<Kick>,
    pub(crate) counters: Counters,
}

const SENDING: usize = 0;
const RECEIVING: usize = 1;

impl Shared {
    /// Without rings so far. `kick` may be that of other rings too.
    pub(crate) fn new(kick: &Arc<Kick>) -> Arc<Self> {
        let lanes = [(); 2].map(|()| Lanes::new(None));
        Arc::new(Self { lanes, monitors: Default::default(), kick: kick.clone(), counters: Counters::default() })
    }

    /// Queues over whatever rings there are. `pool` is where frames are copied to, in 64 buffers each at most.
    pub(crate) fn queues(self: &Arc<Self>, pool: &Mempool) -> Result<Queues, Error> {
        if pool.buffer_size() * MOST_BUFFERS < LONGEST {
            let least = LONGEST / MOST_BUFFERS;
            return Err(Error::Other(format!("netmap ports need packet buffers of {least} bytes or more")));
        }
        // Whoever receives does nothing of what may be asked.
        let tx = Software::new(Tx::new(self), Flags::default(), pool);
        Ok(Queues { rx: Box::new(Rx::new(self, pool)), tx: Box::new(tx) })
    }

    /// Takes rings in their first state, whose buffers are reached so.
    pub(crate) fn open(&self, served: Vec<Served>, place: &Place) {
        let (tx, rx): (Vec<_>, Vec<_>) = served.into_iter().partition(|ring| ring.direction() == Direction::Tx);
        for (lane, rings) in self.lanes.iter().zip([tx, rx]) {
            *lane.lock() = Some(Lane::new(rings, place.clone()));
        }
    }

    /// Lets go of the rings: from here on nobody touches them.
    pub(crate) fn close(&self) {
        for lane in &self.lanes {
            let taken = lane.lock().take();
            // Behind the lock: memory may be unmapped with it.
            drop(taken);
        }
    }

    /// A program wants to be woken for rings: those whose entries of the CSB are set in the word.
    pub(crate) fn listen(&self, number: u64, entries: u64, call: &Signal) {
        self.ignore(number);
        for lane in &self.lanes {
            if let Some(lane) = lane.lock().as_mut() {
                lane.listeners.push(Listener { number, entries, call: call.clone() });
            }
        }
    }

    /// It does no longer.
    pub(crate) fn ignore(&self, number: u64) {
        for lane in &self.lanes {
            if let Some(lane) = lane.lock().as_mut() {
                lane.listeners.retain(|listener| listener.number != number);
            }
        }
    }

    fn sending(&self) -> &Lanes {
        &self.lanes[SENDING]
    }

    fn receiving(&self) -> &Lanes {
        &self.lanes[RECEIVING]
    }
}

/// See the module. The port ends when this is dropped; its queues then do nothing any more.
pub struct RingPort {
    shared: Arc<Shared>,
}

impl RingPort {
    /// Of rings in their first state, those to send first, with their buffers; and its queues. `pool` is where frames are
    /// copied to, in 64 buffers each at most.
    pub fn new(served: Vec<Served>, buffers: &Buffers, pool: &Mempool) -> Result<(Self, Queues), Error> {
        let shared = Shared::new(&kick()?);
        let queues = shared.queues(pool)?;
        shared.open(served, &buffers.clone().into());
        Ok((Self { shared }, queues))
    }

    /// What has gone through. Received is what the switch has received.
    pub fn stats(&self) -> Stats {
        self.shared.counters.stats()
    }

    /// How often a ring was put back to where the switch stands.
    pub fn resets(&self) -> u64 {
        self.shared.counters.resets()
    }

    /// Slots whose buffer or length cannot be, or that say where else the frame lies.
    pub fn bad_slots(&self) -> u64 {
        self.shared.counters.bad_slots()
    }

    /// What a program did wrong first.
    pub fn fault(&self) -> Option<String> {
        self.shared.counters.fault()
    }
}

impl ServedPort for RingPort {
    fn kick(&self) -> BorrowedFd<'_> {
        self.shared.kick.event()
    }

    fn listen(&mut self, number: u64, entries: u64, call: Signal) {
        self.shared.listen(number, entries, &call);
    }

    fn ignore(&mut self, number: u64) {
        self.shared.ignore(number);
    }

    fn counters(&self) -> Value {
        self.shared.counters.json()
    }

    fn monitor(&self, ways: [bool; 2], served: Vec<Served>, buffers: &Buffers) -> Result<Box<dyn ServedPort>, Refusal> {
        Monitor::open(vec![self.shared.clone()], ways, served, buffers)
    }
}

impl Drop for RingPort {
    fn drop(&mut self) {
        self.shared.close();
    }
}
