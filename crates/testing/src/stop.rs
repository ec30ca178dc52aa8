//! The end of a test's threads.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells threads to end when dropped, also on a panic.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
