//! A descriptor that a thread sleeps on, and that this process and others wake it by.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{EventNotifier, EventWaiter, prepare_notifiers};

/// A [`EventWaiter`] with a new eventfd that this process can signal as well.
pub struct WakeFd {
    waiter: EventWaiter,
    signal: EventNotifier,
}

impl WakeFd {
    /// Creates the eventfd.
    ///
    /// # Errors
    /// The kernel's, when no descriptor is left or when notifiers cannot be [prepared](prepare_notifiers).
    pub fn new() -> io::Result<Self> {
        Self::with(EventWaiter::new)
    }

    /// Takes over an eventfd by which others wake the sleeper already.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); [`NotEventfd`](crate::NotEventfd) inside [`io::Error::other`] for any other kind of file.
    pub fn on(event: OwnedFd) -> io::Result<Self> {
        Self::with(|| EventWaiter::on(event))
    }

    fn with(waiter: impl FnOnce() -> io::Result<EventWaiter>) -> io::Result<Self> {
        prepare_notifiers()?;
        let waiter = waiter()?;
        let signal = waiter.signal();
        Ok(Self { waiter, signal })
    }

    /// Returns the eventfd that other processes write to.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.waiter.event()
    }

    /// Returns the notifier that wakes the sleeper, to be cloned and kept elsewhere.
    pub fn signal(&self) -> &EventNotifier {
        &self.signal
    }

    /// Lets another eventfd wake the sleeper too.
    pub fn watch(&self, event: impl AsFd) -> io::Result<()> {
        self.waiter.watch(event)
    }

    /// Stops watching an eventfd. Must be called before it is closed: another process holds it too, so closing
    /// it here does not end the watch.
    pub fn unwatch(&self, event: impl AsFd) {
        self.waiter.unwatch(event);
    }

    /// Wakes the sleeper. Never blocks, whatever other processes did to the eventfd.
    pub fn wake(&self) {
        self.signal.notify();
    }

    /// Makes the descriptor unreadable until the next signal.
    pub fn clear(&self) {
        self.waiter.clear();
    }
}

/// The descriptor to wait on.
impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiter.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

    use super::*;

    fn awake(kick: &WakeFd) -> bool {
        poll(&mut [PollFd::new(kick, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    fn write(event: impl AsFd) {
        rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
    }

    #[test]
    fn each_kick_wakes_once_though_nobody_reads_it() {
        let kick = WakeFd::new().unwrap();
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
        let kick = WakeFd::new().unwrap();
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
        // As a guest does: it keeps a descriptor of the same eventfd.
        let theirs = watched.try_clone().unwrap();
        kick.unwatch(&watched);
        drop(watched);
        write(&theirs);
        assert!(!awake(&kick));
    }

    #[test]
    fn a_full_counter_that_waits_keeps_nobody_from_waking() {
        let kick = WakeFd::new().unwrap();
        let most = u64::MAX - 1;
        rustix::io::write(kick.event(), &most.to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(kick.event(), rustix::fs::OFlags::empty()).unwrap();
        kick.clear();
        assert!(!awake(&kick));
        kick.wake();
        assert!(awake(&kick));
    }
}
