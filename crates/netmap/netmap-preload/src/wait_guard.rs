//! A thread that blocks until a port has something for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::c_short;
use netmap::{Direction, PortRing};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::registered::{IN, OUT, RegisteredPort};

/// Data of the eventfd's events, and of the connection's.
const BELL: u64 = 0;
const SERVER: u64 = 1;

/// A thread that is about to block. Until it is dropped, the other sides of the rings are requested to wake it.
pub struct WaitGuard<'a> {
    registered: &'a RegisteredPort,
    directions: [bool; 2],
    forks: u64,
    epoll: Option<OwnedFd>,
}

const BOTH: [Direction; 2] = [Direction::Tx, Direction::Rx];

impl<'a> WaitGuard<'a> {
    /// Arms a port's rings for events of `poll`. The caller must poll the rings once more before it blocks.
    pub fn new(registered: &'a RegisteredPort, events: c_short) -> Result<Self, Errno> {
        let mut state = registered.wait_queue.state();
        let epoll = match state.waiters.pop() {
            Some(epoll) => epoll,
            None => new_epoll(registered)?,
        };
        let directions = [events & OUT != 0, events & IN != 0];
        for ((waiting, direction), wanted) in state.waiting.iter_mut().zip(BOTH).zip(directions) {
            *waiting += u32::from(wanted);
            if wanted {
                arm(registered, direction);
            }
        }
        Ok(Self { registered, directions, forks: state.forks, epoll: Some(epoll) })
    }

    /// Descriptor that becomes readable when the port's eventfd is signalled, or the serving process ends.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_ref().expect("until dropped").as_fd()
    }

    /// After blocking: consumes the events, marks the port as lost if its server is gone, and asks to be woken again: what it was
    /// woken for may have gone to another thread.
    pub fn heard(&self) {
        for (direction, _) in BOTH.into_iter().zip(self.directions).filter(|(_, wanted)| *wanted) {
            arm(self.registered, direction);
        }
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(BELL) }; 2];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let heard = epoll::wait(self.fd(), &mut events, Some(&now)).unwrap_or(0);
        if events[..heard].iter().any(|event| event.data.u64() == SERVER) {
            self.registered.set_lost();
        }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.registered.wait_queue.state();
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

/// Asks the other sides of a direction's rings to wake this one. The result is not needed, as the caller polls the rings afterwards.
fn arm(registered: &RegisteredPort, direction: Direction) {
    registered.rings(direction).iter().for_each(|ring| _ = ring.arm_at(0));
}

fn new_epoll(registered: &RegisteredPort) -> Result<OwnedFd, Errno> {
    use epoll::EventFlags;
    let port = registered.port();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, port.call_event(), epoll::EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
    epoll::add(&epoll, port.server(), epoll::EventData::new_u64(SERVER), EventFlags::RDHUP)?;
    Ok(epoll)
}
