//! The lock under which the kernel's descriptors and the library's table change together.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use libc::{PTHREAD_MUTEX_INITIALIZER, SIG_SETMASK, pthread_mutex_t, sigset_t};

/// A lock that a thread can hold over `fork`, and with all signals blocked: a signal handler may duplicate and
/// close descriptors too, and would wait for the thread that it interrupts.
pub struct ChangeLock {
    mutex: UnsafeCell<pthread_mutex_t>,
    /// Signal mask of the holder, as it was before.
    mask: UnsafeCell<MaybeUninit<sigset_t>>,
}

// SAFETY: threads share a mutex, and only its holder accesses `mask`.
unsafe impl Sync for ChangeLock {}

impl ChangeLock {
    /// Creates a lock that nobody holds.
    pub const fn new() -> Self {
        Self { mutex: UnsafeCell::new(PTHREAD_MUTEX_INITIALIZER), mask: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Waits for the lock, and holds it until the result is dropped.
    pub fn hold(&self) -> Held<'_> {
        self.acquire();
        Held(self, PhantomData)
    }

    /// Waits for the lock. It is held until [`release`](Self::release).
    pub fn acquire(&self) {
        let (mut all, mut before) = (MaybeUninit::<sigset_t>::uninit(), MaybeUninit::uninit());
        // SAFETY: both sets are locals. `sigfillset` initialises `all` before it is read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        }
        // SAFETY: the mutex was statically initialised, and is not moved while it is borrowed.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        // SAFETY: this thread holds the lock, so no other accesses the field.
        unsafe { *self.mask.get() = before };
    }

    /// Gives up the lock.
    ///
    /// # Safety
    /// This thread holds the lock, or is the copy that `fork` has made of the thread that holds it.
    pub unsafe fn release(&self) {
        // SAFETY: this thread holds the lock, by this function's contract, so no other accesses the field.
        let before = unsafe { *self.mask.get() };
        // SAFETY: this thread holds the mutex, by this function's contract. `acquire` has initialised `before`.
        unsafe {
            libc::pthread_mutex_unlock(self.mutex.get());
            libc::pthread_sigmask(SIG_SETMASK, before.as_ptr(), null_mut());
        }
    }
}

/// The lock, held by this thread. Not `Send`, as a mutex is unlocked by the thread that has locked it.
pub struct Held<'a>(&'a ChangeLock, PhantomData<*const ()>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: `hold` has acquired the lock on this thread, which this value cannot leave.
        unsafe { self.0.release() };
    }
}
