//! An eventfd that takes long to be signalled.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};

/// An eventfd for which 90,000 waiters wait, each of which a signal wakes. They are the pairs of 300 epoll sets and
/// 300 descriptors of the eventfd.
pub struct SlowEventfd {
    event: OwnedFd,
    _copies: Vec<OwnedFd>,
    _sets: Vec<OwnedFd>,
}

impl SlowEventfd {
    /// Creates an eventfd, whose counter is zero.
    pub fn new() -> Self {
        Self::on(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"))
    }

    /// Makes an eventfd slow, as long as the result exists.
    pub fn on(event: OwnedFd) -> Self {
        const EACH: u64 = 300;
        let copies: Vec<OwnedFd> = (0..EACH).map(|_| event.try_clone().expect("a descriptor")).collect();
        let sets: Vec<OwnedFd> =
            (0..EACH).map(|_| epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set")).collect();
        for set in &sets {
            for (copy, number) in copies.iter().zip(0..) {
                let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(set, copy, epoll::EventData::new_u64(number), events).expect("room for a waiter");
            }
        }
        Self { event, _copies: copies, _sets: sets }
    }
}

impl Default for SlowEventfd {
    fn default() -> Self {
        Self::new()
    }
}

impl AsFd for SlowEventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
