//! A mutex whose datapath side yields to the control path.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex for a value that a busy worker locks nearly all the time.
///
/// With an ordinary mutex, the worker would lock it again before a waiting thread has woken up. Here the
/// datapath yields while the control path waits. The mutex has cache lines of its own.
///
/// It is not poisoned by panics, so the value must be consistent after each single assignment.
#[derive(Default)]
#[repr(align(128))]
pub struct YieldingMutex<T> {
    value: Mutex<T>,
    waiting: AtomicU32,
}

impl<T> YieldingMutex<T> {
    /// Creates an unlocked mutex.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicU32::new(0) }
    }

    /// Locks on the datapath. Returns `None` if the control path waits.
    #[inline]
    pub fn try_lock_datapath(&self) -> Option<MutexGuard<'_, T>> {
        (self.waiting.load(Relaxed) == 0).then(|| self.locked())
    }

    /// Locks on the datapath, for packets that would otherwise be dropped. While the control path waits, this
    /// yields to it for up to 1000 rounds, usually some microseconds.
    #[inline]
    pub fn lock_datapath(&self) -> MutexGuard<'_, T> {
        // A waiting thread may have to be woken first. If that takes long, the mutex's own queue decides.
        for _ in 0..1000 {
            if self.waiting.load(Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        self.locked()
    }

    /// Locks on the control path if nobody else has the lock, for what can as well be done later.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks on the control path; the datapath yields meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Relaxed);
        let turn = self.locked();
        self.waiting.fetch_sub(1, Relaxed);
        turn
    }

    #[inline]
    fn locked(&self) -> MutexGuard<'_, T> {
        // A thread that panicked with the lock has left a consistent value.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
