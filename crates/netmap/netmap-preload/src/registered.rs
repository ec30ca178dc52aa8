//! A registered port: what `ioctl` and `poll` do with its rings.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use libc::{POLLERR, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM, c_short};
use netmap::client::{Client, Error, Port};
use netmap::csb::Csb;
use netmap::layout::TIMESTAMP;
use netmap::request::register::{DO_RX_POLL, NO_TX_POLL};
use netmap::request::{AskedOffsets, PortName};
use netmap::{Direction, PortRing, SyncError};
use rustix::time::{ClockId, clock_gettime};

use crate::indirect::copy_frames;
use crate::loop_control::LoopControl;
use crate::refusal::Refusal;
use crate::wait_queue::WaitQueue;

/// A port that a program has registered.
pub struct RegisteredPort {
    port: Port,
    /// Set on a VALE port, where frames to send may lie in the program's own memory (`NS_INDIRECT`).
    indirect: bool,
    /// Whether the serving process is gone.
    lost: AtomicBool,
    /// How many syncs found nothing for a program that does not block.
    idle: AtomicU32,
    /// The program's CSB, in CSB mode.
    csb: Mutex<Option<Arc<Csb>>>,
    /// Whether there is one.
    csb_mode: AtomicBool,
    /// The loop that synchronises the rings in CSB mode.
    pub sync_loop: LoopControl,
    /// Threads that block until there is something for them.
    pub wait_queue: WaitQueue,
}

/// Events of `poll` for received frames, under both of their names.
pub const IN: c_short = POLLIN | POLLRDNORM;
/// Events of `poll` for Tx room, under both of their names.
pub const OUT: c_short = POLLOUT | POLLWRNORM;

/// Result of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// The program had set invalid positions, and a ring was reinitialised.
    pub invalid_positions: bool,
    /// The other side of a ring has written invalid positions.
    pub broken: bool,
}

/// Syncs that find nothing for the program before the thread yields its CPU.
const YIELD_INTERVAL: u32 = 32;

impl RegisteredPort {
    /// Takes a port that was just registered.
    pub fn new(port: Port) -> Self {
        Self {
            indirect: PortName::in_header(port.name()).is_ok_and(|name| name.vale().is_some() && name.pipe().is_none()),
            port,
            lost: Default::default(),
            idle: Default::default(),
            csb: Default::default(),
            csb_mode: Default::default(),
            sync_loop: Default::default(),
            wait_queue: Default::default(),
        }
    }

    /// Ends the registration, and returns the connection.
    pub fn unregister(self) -> Result<Client, Error> {
        self.port.unregister()
    }

    /// Sets where frames begin in the buffers of its rings. Returns what was granted.
    pub fn set_offsets(&mut self, asked: &AskedOffsets) -> Result<AskedOffsets, Refusal> {
        Ok(self.port.set_offsets(asked)?)
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Returns whether frames to send may lie in the program's own memory.
    pub fn is_indirect(&self) -> bool {
        self.indirect
    }

    /// Enters CSB mode, or takes another CSB.
    pub fn set_csb(&self, csb: Csb) {
        *self.csb.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(csb));
        self.csb_mode.store(true, Relaxed);
    }

    /// The program's CSB, in CSB mode.
    pub fn csb(&self) -> Option<Arc<Csb>> {
        self.csb.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the program is in CSB mode, in which only the loop synchronises the rings.
    #[inline]
    pub fn is_in_csb_mode(&self) -> bool {
        self.csb_mode.load(Relaxed)
    }

    /// The rings of a direction.
    #[inline]
    pub fn rings(&self, direction: Direction) -> &[PortRing] {
        match direction {
            Direction::Tx => self.port.tx(),
            Direction::Rx => self.port.rx(),
        }
    }

    /// Synchronises the rings of a direction. Several threads and processes may do so at the same time; as in netmap, a ring is left to the
    /// one that has it.
    #[inline]
    pub fn sync(&self, direction: Direction) -> Synced {
        let mut synced = Synced::default();
        for ring in self.rings(direction) {
            let Some(_locked) = ring.lock() else { continue };
            if direction == Direction::Tx && self.indirect {
                copy_frames(ring, self.port.buffers());
            }
            match ring.sync() {
                Ok(()) => {}
                Err(SyncError::Program { .. }) => {
                    ring.repair(self.port.buffers());
                    synced.invalid_positions = true;
                }
                Err(SyncError::Peer(..)) => synced.broken = true,
            }
            let requested = ring.ring().header().flags.load(Relaxed) & TIMESTAMP != 0;
            if requested || direction == Direction::Rx && ring.is_ready() {
                stamp(ring);
            }
        }
        synced
    }

    /// Whether a ring of the direction has slots for the program beyond its `cur`.
    #[inline]
    fn is_ready(&self, direction: Direction) -> bool {
        self.rings(direction).iter().any(PortRing::is_ready)
    }

    /// Yields the CPU after a number of syncs that found nothing, for a program that does not block: the other
    /// side may be waiting for this CPU.
    #[inline]
    pub fn yield_if_idle(&self, direction: Direction) {
        if !self.is_ready(direction) {
            let idle = self.idle.load(Relaxed).wrapping_add(1);
            self.idle.store(idle, Relaxed);
            if idle.is_multiple_of(YIELD_INTERVAL) {
                std::thread::yield_now();
            }
        }
    }

    /// Whether the program has released Tx slots that were not passed on.
    fn unsent(&self) -> bool {
        self.port.tx().iter().any(|ring| ring.ring().head_and_cur().0 != ring.passed())
    }

    /// Returns the events that `poll` reports. Synchronises the rings for which it is asked, and those that the
    /// flags of the registration add.
    #[inline]
    pub fn poll_events(&self, events: c_short) -> c_short {
        if self.is_in_csb_mode() {
            return POLLERR;
        }
        let flags = self.port.granted().flags;
        let mut bad = Synced::default();
        let mut sync = |direction| {
            let Synced { invalid_positions, broken } = self.sync(direction);
            bad = Synced { invalid_positions: bad.invalid_positions | invalid_positions, broken: bad.broken | broken };
        };
        if events & OUT != 0 || flags & NO_TX_POLL == 0 && self.unsent() {
            sync(Direction::Tx);
        }
        if events & IN != 0 || flags & DO_RX_POLL != 0 {
            sync(Direction::Rx);
        }
        if bad != Synced::default() || self.lost.load(Relaxed) {
            return POLLERR;
        }
        let ready = |wanted: c_short, direction| {
            let wanted = events & wanted;
            if wanted != 0 && self.is_ready(direction) { wanted } else { 0 }
        };
        ready(OUT, Direction::Tx) | ready(IN, Direction::Rx)
    }

    /// Returns how many slots the program has in rings of the requested directions.
    pub fn slots(&self, events: c_short) -> u32 {
        self.rings_of(events).map(PortRing::own).sum()
    }

    fn rings_of(&self, events: c_short) -> impl Iterator<Item = &PortRing> {
        let of = |wanted, direction| if events & wanted != 0 { self.rings(direction) } else { &[] };
        of(OUT, Direction::Tx).iter().chain(of(IN, Direction::Rx))
    }

    /// Returns whether the serving process is gone, as far as a thread has seen that waited.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// Records that the serving process is gone; `poll` reports an error from then on.
    pub fn set_lost(&self) {
        self.lost.store(true, Relaxed);
    }

    /// Returns a number that changes when rings of the requested directions advance, for edge-triggered events.
    pub fn generation(&self, events: c_short) -> u64 {
        self.rings_of(events)
            .fold(1, |sum, ring| u64::wrapping_mul(sum, 65_537) + u64::from(ring.ring().header().tail.load(Relaxed)))
    }
}

/// Stores the time of this sync in the ring's header.
fn stamp(ring: &PortRing) {
    let now = clock_gettime(ClockId::Realtime);
    let [seconds, micros] = &ring.ring().header().time;
    seconds.store(now.tv_sec as u64, Relaxed);
    micros.store(now.tv_nsec as u64 / 1000, Relaxed);
}
