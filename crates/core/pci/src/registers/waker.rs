//! Waking a software device that sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ringpass_ipc::{EventNotifier, NotEventfd, WakeFd};

/// The driver's side: a flag in memory that both sides share, which is set while the device sleeps, and an
/// eventfd that wakes it.
///
/// The device sets the flag and then polls its doorbells once more; the driver writes a doorbell and then
/// checks the flag. With a full fence between the two steps on each side, at least one of them sees the other.
#[derive(Clone)]
pub struct DeviceWaker {
    asleep: NonNull<AtomicU32>,
    /// `None` where the device polls and never needs a wake-up.
    signal: Option<EventNotifier>,
}

// SAFETY: the flag is an atomic that outlives the waker by the contract of `new`; `EventNotifier` is `Send`.
unsafe impl Send for DeviceWaker {}
// SAFETY: all accesses to the flag are atomic, and `EventNotifier::notify` takes a shared reference.
unsafe impl Sync for DeviceWaker {}

impl DeviceWaker {
    /// Creates a waker from a flag in shared memory and the device's eventfd. Without an eventfd, the waker
    /// never signals.
    ///
    /// # Errors
    /// [`NotEventfd`] if `event` is another kind of file.
    ///
    /// # Safety
    /// The flag stays valid as long as the waker and its clones.
    pub unsafe fn new(asleep: NonNull<AtomicU32>, event: Option<OwnedFd>) -> Result<Self, NotEventfd> {
        Ok(Self { asleep, signal: event.map(EventNotifier::new).transpose()? })
    }

    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: the contract of `new` (or of `DeviceSleeper::new`) requires that the flag is valid as long as
        // `self`.
        unsafe { self.asleep.as_ref() }
    }

    /// Wakes the device if it sleeps. Must be called after a write to a doorbell. Not inlined, because the
    /// inlined code would occupy CPU registers in drivers of hardware, which has no waker.
    #[inline(never)]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep().load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Signals the eventfd. If several threads of drivers get here, only the first makes the system call.
    #[cold]
    fn wake(&self) {
        if self.asleep().swap(0, Ordering::Relaxed) != 0 {
            self.signal.iter().for_each(EventNotifier::notify);
        }
    }
}

/// The device's side of a [`DeviceWaker`]. Its descriptor is readable from a wake-up until
/// [`finish_wait`](Self::finish_wait).
///
/// Drivers in other processes hold the same eventfd, so it is neither read nor written directly, only waited
/// for and signalled.
pub struct DeviceSleeper {
    waker: DeviceWaker,
    kick: WakeFd,
}

impl DeviceSleeper {
    /// Creates a sleeper from a flag in shared memory, with a new eventfd.
    ///
    /// # Errors
    /// If the process has no descriptor left, or event notifiers cannot be
    /// [prepared](ringpass_ipc::prepare_notifiers).
    ///
    /// # Safety
    /// The flag stays valid as long as the sleeper, its waker and the waker's clones.
    pub unsafe fn new(asleep: NonNull<AtomicU32>) -> io::Result<Self> {
        let kick = WakeFd::new()?;
        Ok(Self { waker: DeviceWaker { asleep, signal: Some(kick.signal().clone()) }, kick })
    }

    /// Returns the driver's side, for drivers in this process.
    pub fn waker(&self) -> &DeviceWaker {
        &self.waker
    }

    /// Returns the eventfd that drivers in other processes signal.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.kick.event()
    }

    /// Announces that the device is about to sleep. The device must then poll its doorbells once more before it
    /// sleeps.
    pub fn prepare_to_wait(&self) {
        self.waker.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the device is awake again, and clears the wake-up.
    pub fn finish_wait(&self) {
        self.waker.asleep().store(0, Ordering::Relaxed);
        self.kick.clear();
    }
}

/// The descriptor to poll for wake-ups.
impl AsFd for DeviceSleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn rung(sleeper: &DeviceSleeper) -> bool {
        poll(&mut [PollFd::new(sleeper, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let word = AtomicU32::new(0);
        // SAFETY: the word outlives the sleeper, which is declared after it and so dropped first.
        let sleeper = unsafe { DeviceSleeper::new(NonNull::from(&word)) }.expect("an eventfd");
        let waker = sleeper.waker();
        waker.ring();
        assert!(!rung(&sleeper), "awake");
        sleeper.prepare_to_wait();
        waker.ring();
        assert_eq!(word.load(Ordering::Relaxed), 0);
        assert!(rung(&sleeper));
        sleeper.finish_wait();
        waker.ring();
        assert!(!rung(&sleeper), "once");
        sleeper.prepare_to_wait();
        waker.ring();
        sleeper.finish_wait();
        assert!(!rung(&sleeper), "cleared");
    }

    /// `O_NONBLOCK` belongs to the open file, which a driver in another process shares.
    #[test]
    fn a_driver_that_makes_the_eventfd_block_stops_neither_side() {
        let (done, finished) = mpsc::channel();
        std::thread::spawn(move || {
            let word = AtomicU32::new(0);
            // SAFETY: the word outlives the sleeper, which is declared after it and so dropped first.
            let sleeper = unsafe { DeviceSleeper::new(NonNull::from(&word)) }.expect("an eventfd");
            let theirs = sleeper.event().try_clone_to_owned().unwrap();
            fcntl_setfl(&theirs, OFlags::empty()).unwrap();
            // Nobody has signalled, so a read would block.
            sleeper.prepare_to_wait();
            sleeper.finish_wait();
            // The counter is full, so a write would block.
            rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            // SAFETY: the word outlives the waker, which is declared after it and so dropped first.
            let waker = unsafe { DeviceWaker::new(NonNull::from(&word), Some(theirs)) }.expect("an eventfd");
            sleeper.finish_wait();
            sleeper.prepare_to_wait();
            waker.ring();
            assert!(rung(&sleeper));
            done.send(()).unwrap();
        });
        finished.recv_timeout(Duration::from_secs(30)).expect("neither side has blocked");
    }
}
