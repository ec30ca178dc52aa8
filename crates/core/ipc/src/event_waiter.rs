//! Waiting for eventfds that other processes hold too.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::{EventNotifier, check_eventfd};

/// An eventfd to wait for, and others that are [watched](Self::watch) along with it. As a descriptor it is
/// readable from a signal until it is [cleared](Self::clear).
///
/// The eventfd is never read. `O_NONBLOCK` belongs to the open file, so another holder can turn it off at any
/// time, and a read of an empty eventfd would then block. An edge-triggered epoll set reports each signal once
/// without touching the counter.
#[derive(Debug)]
pub struct EventWaiter {
    epoll: OwnedFd,
    event: Arc<OwnedFd>,
}

const EDGE: EventFlags = EventFlags::IN.union(EventFlags::ET);

impl EventWaiter {
    /// Creates a waiter with a new eventfd.
    ///
    /// # Errors
    /// The kernel's, when the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Self::watching(Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Creates a waiter for an existing eventfd. If it was signalled before, the waiter is readable at once.
    ///
    /// # Errors
    /// The kernel's, when the process has no descriptor left; [`NotEventfd`](crate::NotEventfd) inside
    /// [`io::Error::other`] for any other kind of file.
    pub fn on(event: OwnedFd) -> io::Result<Self> {
        check_eventfd(&event).map_err(io::Error::other)?;
        Self::watching(Arc::new(event))
    }

    fn watching(event: Arc<OwnedFd>) -> io::Result<Self> {
        let waiter = Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, event };
        waiter.watch(&*waiter.event)?;
        Ok(waiter)
    }

    /// Returns the eventfd, to be handed to the process that signals it. This process must not read or write
    /// it; see [`EventNotifier`](crate::EventNotifier).
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Returns a notifier that signals the eventfd from this process. Call
    /// [`prepare_notifiers`](crate::prepare_notifiers) first.
    pub fn signal(&self) -> EventNotifier {
        EventNotifier::of(self.event.clone())
    }

    /// Creates another waiter for the same eventfd. Each of the two sees every signal.
    ///
    /// # Errors
    /// The kernel's, when the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Self::watching(self.event.clone())
    }

    /// Watches another eventfd along with the first.
    ///
    /// # Errors
    /// The kernel's, when it is watched already or is a file that cannot be polled.
    pub fn watch(&self, event: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, event, EventData::new_u64(0), EDGE)?)
    }

    /// Stops watching an eventfd. Must be called before it is closed: another process holds it too, so closing
    /// it here does not end the watch.
    pub fn unwatch(&self, event: impl AsFd) {
        // An error could only mean that it was not watched.
        let _ = epoll::delete(&self.epoll, event);
    }

    /// Makes the waiter unreadable until the next signal. Never blocks; one system call.
    pub fn clear(&self) {
        let mut events = [const { MaybeUninit::uninit() }; 2];
        // Each edge is reported once. The only possible error is EINTR; then the next wait returns early, which
        // does no harm.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()));
    }
}

/// The epoll set, to be polled for readability.
impl AsFd for EventWaiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn readable(waiter: &EventWaiter) -> bool {
        poll(&mut [PollFd::new(waiter, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn clearing_does_not_block_although_the_peer_has_turned_nonblocking_off() {
        let (done, finished) = mpsc::channel();
        std::thread::spawn(move || {
            let waiter = EventWaiter::new().unwrap();
            let theirs = waiter.event().try_clone_to_owned().unwrap();
            fcntl_setfl(&theirs, OFlags::empty()).unwrap();
            // The counter is zero: a read would block here.
            waiter.clear();
            for _ in 0..3 {
                assert!(!readable(&waiter));
                rustix::io::write(&theirs, &1u64.to_ne_bytes()).unwrap();
                assert!(readable(&waiter));
                waiter.clear();
            }
            done.send(()).unwrap();
        });
        finished.recv_timeout(Duration::from_secs(30)).expect("cleared without blocking");
    }

    #[test]
    fn a_signal_that_came_before_the_waiter_is_seen() {
        let event = eventfd(3, EventfdFlags::empty()).unwrap();
        let waiter = EventWaiter::on(event).unwrap();
        assert!(readable(&waiter));
        waiter.clear();
        assert!(!readable(&waiter));
    }
}
