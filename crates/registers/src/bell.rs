//! The bell that wakes a device of software.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// A word that says whether the device sleeps, in memory that both sides share, and an eventfd that wakes it.
///
/// The device says that it is about to sleep, then looks at the doorbells once more; the driver writes a doorbell, then
/// looks whether the device sleeps. With a full fence between the two steps on each side, one of them sees the other.
#[derive(Clone)]
pub struct Bell {
    asleep: NonNull<AtomicU32>,
    event: Arc<OwnedFd>,
}

// SAFETY: an atomic that outlives the bell (`new`), and a descriptor.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    /// A bell over a word of shared memory. `event` is the other side's eventfd, or `None` for a new one.
    ///
    /// # Safety
    /// The word stays valid as long as the bell and its clones.
    pub unsafe fn new(asleep: NonNull<AtomicU32>, event: Option<OwnedFd>) -> io::Result<Self> {
        let event = match event {
            Some(event) => event,
            None => eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        };
        Ok(Self { asleep, event: Arc::new(event) })
    }

    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: valid as long as `self`, said the caller of `new`.
        unsafe { self.asleep.as_ref() }
    }

    /// The driver's side, behind a write to a doorbell: wakes the device if it sleeps. Inlined, it would cost a card of
    /// silicon's driver its registers.
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
            // It fails only if the counter is full, and then the device is awake.
            let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
        }
    }

    /// The device's side: about to sleep. It must look at its doorbells once more.
    pub fn doze(&self) {
        self.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The device's side: awake again.
    pub fn rise(&self) {
        self.asleep().store(0, Ordering::Relaxed);
        // Empty unless somebody rang.
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
    }

    /// What becomes readable when somebody rings, for the device to sleep on and to be given to the driver's process.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let word = AtomicU32::new(0);
        // SAFETY: the word outlives the bell, which is declared behind it.
        let bell = unsafe { Bell::new(NonNull::from(&word), None) }.expect("an eventfd");
        let rung = || rustix::io::read(bell.event(), &mut [0; 8]).is_ok();
        bell.ring();
        assert!(!rung(), "awake");
        bell.doze();
        bell.ring();
        bell.ring();
        assert_eq!(word.load(Ordering::Relaxed), 0);
        assert!(rung() && !rung(), "once");
        bell.doze();
        bell.ring();
        bell.rise();
        assert!(!rung(), "drained");
    }
}
