//! What one sleeps on and others wake from: eventfds that they have too.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::{Signal, prepare_signals};

/// An eventfd that others may be given, and whatever else of theirs is [watched](Self::watch). As a descriptor: readable
/// from a kick until it is [cleared](Self::clear).
///
/// Eventfds are never read: whoever has one too can make it one that waits, or empty it. Each kick is an event of its own, as
/// they are watched for edges.
pub struct Kick {
    epoll: OwnedFd,
    event: Signal,
}

const EDGE: EventFlags = EventFlags::IN.union(EventFlags::ET);

impl Kick {
    /// There before anybody kicks. An error without descriptors, or where signals cannot be [prepared](prepare_signals).
    pub fn new() -> io::Result<Self> {
        prepare_signals()?;
        let event =
            Signal::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?).map_err(io::Error::other)?;
        let kick = Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, event };
        kick.watch(&kick.event)?;
        Ok(kick)
    }

    /// What others write to.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Wakes from another's eventfd too, from now on.
    pub fn watch(&self, event: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, event, EventData::new_u64(0), EDGE)?)
    }

    /// Before a watched descriptor is closed: another has it too, so that closing it here would not end the watch.
    pub fn unwatch(&self, event: impl AsFd) {
        // It was watched.
        let _ = epoll::delete(&self.epoll, event);
    }

    /// Wakes whoever sleeps. Never waits, whatever others did to the eventfd.
    pub fn wake(&self) {
        self.event.raise();
    }

    /// Takes away what woke.
    pub fn clear(&self) {
        let mut events = [const { MaybeUninit::uninit() }; 2];
        // What is watched for edges is reported once. An error is a signal, and then the next sleep is short.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()));
    }
}

/// What is to be waited on.
impl AsFd for Kick {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn awake(kick: &Kick) -> bool {
        poll(&mut [PollFd::new(kick, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    fn write(event: impl AsFd) {
        rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
    }

    #[test]
    fn each_kick_wakes_once_though_nobody_reads_it() {
        let kick = Kick::new().unwrap();
        for _ in 0..3 {
            assert!(!awake(&kick));
            write(kick.event());
            assert!(awake(&kick) && awake(&kick));
            kick.clear();
            assert!(!awake(&kick));
            kick.wake();
            assert!(awake(&kick));
            kick.clear();
        }
        assert!(!awake(&kick));
    }

    #[test]
    fn a_watched_eventfd_wakes_until_it_is_no_longer_watched() {
        let kick = Kick::new().unwrap();
        let watched = eventfd(0, EventfdFlags::empty()).unwrap();
        kick.watch(&watched).unwrap();
        for _ in 0..3 {
            assert!(!awake(&kick));
            write(&watched);
            assert!(awake(&kick) && awake(&kick));
            kick.wake();
            kick.clear();
        }
        assert!(!awake(&kick));
        // As a guest does, which keeps a descriptor of the same.
        let theirs = watched.try_clone().unwrap();
        kick.unwatch(&watched);
        drop(watched);
        write(&theirs);
        assert!(!awake(&kick));
    }

    #[test]
    fn a_full_counter_that_waits_keeps_nobody_from_waking() {
        let kick = Kick::new().unwrap();
        let most = u64::MAX - 1;
        rustix::io::write(kick.event(), &most.to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(kick.event(), rustix::fs::OFlags::empty()).unwrap();
        kick.clear();
        assert!(!awake(&kick));
        kick.wake();
        assert!(awake(&kick));
    }
}
