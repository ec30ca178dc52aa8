//! What one sleeps on and others wake from: eventfds that they have too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::{Signal, Waiter, prepare_signals};

/// A [`Waiter`] with a new eventfd that this process can signal as well.
pub struct Kick {
    waiter: Waiter,
    signal: Signal,
}

impl Kick {
    /// There before anybody kicks. An error without descriptors, or where signals cannot be [prepared](prepare_signals).
    pub fn new() -> io::Result<Self> {
        prepare_signals()?;
        let waiter = Waiter::new()?;
        let signal = waiter.signal();
        Ok(Self { waiter, signal })
    }

    /// What others write to.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.waiter.event()
    }

    /// What wakes it, to be kept elsewhere.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Wakes from another's eventfd too, from now on.
    pub fn watch(&self, event: impl AsFd) -> io::Result<()> {
        self.waiter.watch(event)
    }

    /// Before a watched descriptor is closed: another has it too, so that closing it here would not end the watch.
    pub fn unwatch(&self, event: impl AsFd) {
        self.waiter.unwatch(event);
    }

    /// Wakes whoever sleeps. Never waits, whatever others did to the eventfd.
    pub fn wake(&self) {
        self.signal.raise();
    }

    /// Takes away what woke.
    pub fn clear(&self) {
        self.waiter.clear();
    }
}

/// What is to be waited on.
impl AsFd for Kick {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiter.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

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
