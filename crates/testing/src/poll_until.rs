//! Waiting for what threads of this process do.

use std::time::{Duration, Instant};

/// Calls `done` until it returns true, and returns how long that took. What other programs do is waited for by
/// `ringpass_lab::wait_until`, which leaves the processor to them.
///
/// # Panics
///
/// After a minute.
pub fn poll_until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "gave up waiting for {what}");
        std::thread::yield_now();
    }
    start.elapsed()
}
