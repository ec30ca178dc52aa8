//! What a worker locks once a burst, and others now and then.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that a busy worker has nearly all the time: it would take it again before whoever waits has woken up, and so
/// stands back while somebody does. On cache lines of its own.
///
/// No panic poisons it, so the value has to be one that is whole after each single assignment.
#[derive(Default)]
#[repr(align(128))]
pub struct Turns<T> {
    value: Mutex<T>,
    waiting: AtomicU32,
}

impl<T> Turns<T> {
    /// A value that nobody wants so far.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicU32::new(0) }
    }

    /// For packets; `None` if somebody else wants it now.
    #[inline]
    pub fn for_packets(&self) -> Option<MutexGuard<'_, T>> {
        (self.waiting.load(Relaxed) == 0).then(|| self.locked())
    }

    /// For packets that would be dropped if they stood back: they wait for their turn, some microseconds.
    #[inline]
    pub fn in_turn(&self) -> MutexGuard<'_, T> {
        // Whoever waits may have to be woken first. Should that take long, the lock's own queue decides.
        for _ in 0..1000 {
            if self.waiting.load(Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        self.locked()
    }

    /// For all else: packets stand back.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Relaxed);
        let turn = self.locked();
        self.waiting.fetch_sub(1, Relaxed);
        turn
    }

    #[inline]
    fn locked(&self) -> MutexGuard<'_, T> {
        // Whoever panicked with it has left a value that is whole.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
