//! Threads that sleep until a port has something for them.
//!
//! Each has an epoll instance of its own (a [`Waiter`]) that hears of each ring of the port's bell, by its edge. Nobody takes back
//! what has rung: of several sleepers, each hears it, though one be quicker than another.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use libc::c_short;
use netmap::{Direction, PortRing};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::registered::{IN, OUT, Registered};

/// Those of a port.
#[derive(Default)]
pub struct Sleepers(Mutex<State>);

#[derive(Default)]
struct State {
    /// As of which fork.
    forks: u64,
    /// How many wait for rings to send, and to receive.
    waiting: [u32; 2],
    /// Of those who have woken up.
    waiters: Vec<OwnedFd>,
}

/// How often this process, or one that it comes from, was forked.
pub static FORKS: AtomicU64 = AtomicU64::new(0);

/// What of an event is the bell's, and what the connection's.
const BELL: u64 = 0;
const SERVER: u64 = 1;

impl Sleepers {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let forks = FORKS.load(Relaxed);
        if state.forks != forks {
            // Those were the parent's threads, and what they slept on.
            *state = State { forks, ..State::default() };
        }
        state
    }
}

/// A thread that is about to sleep: the other sides of the rings wake it. Until dropped.
pub struct Waiter<'a> {
    registered: &'a Registered,
    directions: [bool; 2],
    forks: u64,
    epoll: Option<OwnedFd>,
}

const BOTH: [Direction; 2] = [Direction::Tx, Direction::Rx];

impl<'a> Waiter<'a> {
    /// Of a port, for `poll`'s events. Rings are to be looked at once more before the sleep.
    pub fn new(registered: &'a Registered, events: c_short) -> Result<Self, Errno> {
        let mut state = registered.sleepers.state();
        let epoll = match state.waiters.pop() {
            Some(epoll) => epoll,
            None => new_epoll(registered)?,
        };
        let directions = [events & OUT != 0, events & IN != 0];
        for ((waiting, direction), wanted) in state.waiting.iter_mut().zip(BOTH).zip(directions) {
            *waiting += u32::from(wanted);
            if wanted {
                // The look that belongs to it comes later.
                registered.rings(direction).iter().for_each(|ring| _ = ring.arm_at(0));
            }
        }
        Ok(Self { registered, directions, forks: state.forks, epoll: Some(epoll) })
    }

    /// Becomes readable when the bell rings or the serving process ends.
    pub fn fd(&self) -> i32 {
        self.epoll().as_raw_fd()
    }

    fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_ref().expect("until dropped").as_fd()
    }

    /// Behind a sleep: what was heard is forgotten, and the port knows if its server is gone.
    pub fn heard(&self) {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(BELL) }; 2];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let heard = epoll::wait(self.epoll(), &mut events, Some(&now)).unwrap_or(0);
        if events[..heard].iter().any(|event| event.data.u64() == SERVER) {
            self.registered.set_lost();
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.registered.sleepers.state();
        if state.forks != self.forks {
            return;
        }
        for ((waiting, direction), wanted) in state.waiting.iter_mut().zip(BOTH).zip(self.directions) {
            *waiting -= u32::from(wanted);
            if wanted && *waiting == 0 {
                self.registered.rings(direction).iter().for_each(PortRing::disarm);
            }
        }
        state.waiters.extend(self.epoll.take());
    }
}

fn new_epoll(registered: &Registered) -> Result<OwnedFd, Errno> {
    use epoll::EventFlags;
    let port = registered.port();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, port.bell(), epoll::EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
    epoll::add(&epoll, port.server(), epoll::EventData::new_u64(SERVER), EventFlags::RDHUP)?;
    Ok(epoll)
}
