//! The bell that wakes a device of software.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ringpass_peer::{Kick, NoEventfd, Signal};

/// The driver's side: a word that says whether the device sleeps, in memory that both sides share, and an eventfd that wakes
/// it.
///
/// The device says that it is about to sleep, then looks at the doorbells once more; the driver writes a doorbell, then
/// looks whether the device sleeps. With a full fence between the two steps on each side, one of them sees the other.
#[derive(Clone)]
pub struct Bell {
    asleep: NonNull<AtomicU32>,
    /// `None` where the device looks by itself.
    signal: Option<Signal>,
}

// SAFETY: the word is an atomic that outlives the bell, as the caller of `new` has promised; a `Signal` is `Send`.
unsafe impl Send for Bell {}
// SAFETY: all access to the word is atomic, and raising a `Signal` takes a shared reference.
unsafe impl Sync for Bell {}

impl Bell {
    /// Creates a bell over a word of shared memory. `event` is the device's eventfd; without one the bell is silent.
    ///
    /// # Errors
    /// [`NoEventfd`] if `event` is another kind of file.
    ///
    /// # Safety
    /// The word stays valid as long as the bell and its clones.
    pub unsafe fn new(asleep: NonNull<AtomicU32>, event: Option<OwnedFd>) -> Result<Self, NoEventfd> {
        Ok(Self { asleep, signal: event.map(Signal::new).transpose()? })
    }

    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: the caller of `new` (or of `Sleeper::new`) keeps the word valid for as long as `self` lives.
        unsafe { self.asleep.as_ref() }
    }

    /// Wakes the device if it sleeps. To be called behind a write to a doorbell. Inlined, it would cost a card of silicon's
    /// driver its registers.
    #[inline(never)]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep().load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Only the first of several drivers' threads makes the system call.
    #[cold]
    fn wake(&self) {
        if self.asleep().swap(0, Ordering::Relaxed) != 0 {
            self.signal.iter().for_each(Signal::raise);
        }
    }
}

/// The device's side of a [`Bell`]. As a descriptor: readable from a ring until [`rise`](Self::rise).
///
/// Drivers in other processes hold the same eventfd, so it is neither read nor written, only waited for and signalled.
pub struct Sleeper {
    bell: Bell,
    kick: Kick,
}

impl Sleeper {
    /// Creates a bell over a word of shared memory, with a new eventfd.
    ///
    /// # Errors
    /// The kernel's, when the process has no descriptor left or signals cannot be [prepared](ringpass_peer::prepare_signals).
    ///
    /// # Safety
    /// The word stays valid as long as the sleeper, its bell and the bell's clones.
    pub unsafe fn new(asleep: NonNull<AtomicU32>) -> io::Result<Self> {
        let kick = Kick::new()?;
        Ok(Self { bell: Bell { asleep, signal: Some(kick.signal().clone()) }, kick })
    }

    /// The driver's side, for drivers of this process.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// The eventfd that drivers of other processes signal.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.kick.event()
    }

    /// Says that the device is about to sleep. It must look at its doorbells once more.
    pub fn doze(&self) {
        self.bell.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that the device is awake again, and takes away what woke it.
    pub fn rise(&self) {
        self.bell.asleep().store(0, Ordering::Relaxed);
        self.kick.clear();
    }
}

/// What to poll for.
impl AsFd for Sleeper {
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

    fn rung(sleeper: &Sleeper) -> bool {
        poll(&mut [PollFd::new(sleeper, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let word = AtomicU32::new(0);
        // SAFETY: the word outlives the sleeper, which is declared behind it.
        let sleeper = unsafe { Sleeper::new(NonNull::from(&word)) }.expect("an eventfd");
        let bell = sleeper.bell();
        bell.ring();
        assert!(!rung(&sleeper), "awake");
        sleeper.doze();
        bell.ring();
        assert_eq!(word.load(Ordering::Relaxed), 0);
        assert!(rung(&sleeper));
        sleeper.rise();
        bell.ring();
        assert!(!rung(&sleeper), "once");
        sleeper.doze();
        bell.ring();
        sleeper.rise();
        assert!(!rung(&sleeper), "cleared");
    }

    /// `O_NONBLOCK` belongs to the open file, which a driver in another process shares.
    #[test]
    fn a_driver_that_makes_the_eventfd_block_stops_neither_side() {
        let (done, finished) = mpsc::channel();
        std::thread::spawn(move || {
            let word = AtomicU32::new(0);
            // SAFETY: the word outlives the sleeper, which is declared behind it.
            let sleeper = unsafe { Sleeper::new(NonNull::from(&word)) }.expect("an eventfd");
            let theirs = sleeper.event().try_clone_to_owned().unwrap();
            fcntl_setfl(&theirs, OFlags::empty()).unwrap();
            // Nobody rang: a read would block.
            sleeper.doze();
            sleeper.rise();
            // The counter is full: a write would block.
            rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            // SAFETY: the word outlives the bell, which is declared behind it.
            let bell = unsafe { Bell::new(NonNull::from(&word), Some(theirs)) }.expect("an eventfd");
            sleeper.rise();
            sleeper.doze();
            bell.ring();
            assert!(rung(&sleeper));
            done.send(()).unwrap();
        });
        finished.recv_timeout(Duration::from_secs(30)).expect("neither side has blocked");
    }
}
