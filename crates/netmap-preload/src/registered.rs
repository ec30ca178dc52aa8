//! A registered port: what `ioctl` and `poll` do with its rings.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use libc::{POLLERR, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM, c_short};
use netmap::client::Port;
use netmap::request::register::{DO_RX_POLL, NO_TX_POLL};
use netmap::{Direction, Patience, PortRing, SyncError};
use rustix::time::{ClockId, clock_gettime};

use crate::sleepers::Sleepers;

/// See the module.
pub struct Registered {
    port: Port,
    /// Of each ring, to send and to receive: whether a thread synchronises it.
    busy: [Vec<AtomicBool>; 2],
    /// The serving process is gone.
    lost: AtomicBool,
    /// How often there was nothing for a program that does not wait.
    idle: AtomicU32,
    /// Who sleeps until something comes.
    pub sleepers: Sleepers,
    /// How long to look before that.
    pub patience: Patience,
}

/// `poll` asks for either name.
pub const IN: c_short = POLLIN | POLLRDNORM;
/// See [`IN`].
pub const OUT: c_short = POLLOUT | POLLWRNORM;

/// How a sync went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// The program had set `head` or `cur` wrongly: a ring began again.
    pub wild: bool,
    /// The other side of a ring has.
    pub broken: bool,
}

/// Syncs without anything for the program before another thread is let in.
const COURTESY: u32 = 32;
/// Rounds of waiting for another thread that synchronises a ring, which takes microseconds where it is not interrupted.
const ROUNDS: u32 = 10_000;

impl Registered {
    /// What is behind a port.
    pub fn new(port: Port) -> Self {
        let busy = [port.tx(), port.rx()].map(|rings| rings.iter().map(|_| AtomicBool::new(false)).collect());
        let (lost, idle, sleepers, patience) = Default::default();
        Self { port, busy, lost, idle, sleepers, patience }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The rings of a direction.
    #[inline]
    pub fn rings(&self, direction: Direction) -> &[PortRing] {
        match direction {
            Direction::Tx => self.port.tx(),
            Direction::Rx => self.port.rx(),
        }
    }

    /// Synchronises the rings of a direction. Threads may do so at the same time.
    #[inline]
    pub fn sync(&self, direction: Direction) -> Synced {
        let mut synced = Synced::default();
        let busy = &self.busy[usize::from(direction == Direction::Rx)];
        for (ring, busy) in self.rings(direction).iter().zip(busy) {
            if busy.swap(true, Acquire) && !wait_until_idle(busy) {
                continue;
            }
            match ring.sync() {
                Ok(()) => {}
                Err(SyncError::Program(_)) => synced.wild = true,
                Err(SyncError::Peer(..)) => synced.broken = true,
            }
            if direction == Direction::Rx && ring.is_ready() {
                stamp(ring);
            }
            busy.store(false, Release);
        }
        synced
    }

    /// Whether a ring of a direction has slots for the program beyond its `cur`.
    #[inline]
    fn is_ready(&self, direction: Direction) -> bool {
        self.rings(direction).iter().any(PortRing::is_ready)
    }

    /// Behind a sync of a program that does not wait: when there was nothing for it some times, whoever waits for this CPU is let
    /// in. It may be the other side.
    #[inline]
    pub fn be_courteous(&self, direction: Direction) {
        if !self.is_ready(direction) {
            let idle = self.idle.load(Relaxed).wrapping_add(1);
            self.idle.store(idle, Relaxed);
            if idle.is_multiple_of(COURTESY) {
                std::thread::yield_now();
            }
        }
    }

    /// Whether the program has given up slots to be sent that were not passed on.
    fn unsent(&self) -> bool {
        self.port.tx().iter().any(|ring| ring.ring().said().0 != ring.passed())
    }

    /// What `poll` says when asked for these events: sends and receives as far as it is asked for, or as the registration
    /// has it.
    #[inline]
    pub fn look(&self, events: c_short) -> c_short {
        let flags = self.port.granted().flags;
        let mut bad = Synced::default();
        let mut sync = |direction| {
            let Synced { wild, broken } = self.sync(direction);
            bad = Synced { wild: bad.wild | wild, broken: bad.broken | broken };
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

    /// The serving process is gone.
    pub fn set_lost(&self) {
        self.lost.store(true, Relaxed);
    }

    /// A number that changes when rings of the directions that are asked for have moved: for those who want to hear of news
    /// only.
    pub fn news(&self, events: c_short) -> u64 {
        let of = |wanted, direction| if events & wanted != 0 { self.rings(direction) } else { &[] };
        let rings = of(OUT, Direction::Tx).iter().chain(of(IN, Direction::Rx));
        rings.fold(1, |sum, ring| u64::wrapping_mul(sum, 65_537) + u64::from(ring.ring().header().tail.load(Relaxed)))
    }
}

/// Whether the ring is this thread's now. A signal's handler may have interrupted the one that has it, so there is a limit.
#[cold]
fn wait_until_idle(busy: &AtomicBool) -> bool {
    (0..ROUNDS).any(|round| {
        Patience::pass(round);
        !busy.swap(true, Acquire)
    })
}

/// When frames were last seen, in the ring's header.
fn stamp(ring: &PortRing) {
    let now = clock_gettime(ClockId::Realtime);
    let [seconds, micros] = &ring.ring().header().time;
    seconds.store(now.tv_sec as u64, Relaxed);
    micros.store(now.tv_nsec as u64 / 1000, Relaxed);
}
