//! A value that the control side sets, for the forwarder to take.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Holds the last value that was put and not taken yet.
pub(super) struct Mailbox<T> {
    is_new: AtomicBool,
    value: Mutex<Option<T>>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { is_new: AtomicBool::new(false), value: Mutex::new(None) }
    }
}

impl<T> Mailbox<T> {
    /// Puts a value, in place of one that was not taken.
    pub(super) fn put(&self, value: T) {
        let before = self.value.lock().unwrap_or_else(PoisonError::into_inner).replace(value);
        self.is_new.store(true, Relaxed);
        drop(before);
    }

    /// Takes the value, if one was put since the last call. Costs a load if there is none.
    pub(super) fn take(&self) -> Option<T> {
        let is_new = self.is_new.load(Relaxed) && self.is_new.swap(false, Relaxed);
        if is_new { self.value.lock().unwrap_or_else(PoisonError::into_inner).take() } else { None }
    }
}
