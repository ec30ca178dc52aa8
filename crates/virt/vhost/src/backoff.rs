//! Decides when a receive queue is polled again.
//!
//! A guest that sends in bulk writes to the same cache lines that a poll reads. A receiver that is faster
//! than the guest and polls again at once keeps taking these lines from the guest's core, which slows both
//! down. After frames have come in bulk, the queue is therefore not polled for a moment, as a NIC moderates
//! its interrupts. Single frames are never delayed.

use std::time::{Duration, Instant};

/// Number of frames between two polls that emptied the queue from which on traffic counts as bulk.
const BULK_THRESHOLD: usize = 16;

/// Duration of the backoff. A guest that sends at full speed fills some hundred descriptors in this time,
/// fewer than a ring has. Measured with `bench vhost`, traffic from the guest: 1.5 µs were too short where a
/// cache line takes 500 cycles from core to core, and 12 µs were hardly better than 6.
const POLL_BACKOFF: Duration = Duration::from_micros(6);

/// Poll backoff of one queue.
#[derive(Debug, Default)]
pub(crate) struct PollBackoff {
    found: usize,
    until: Option<Instant>,
}

impl PollBackoff {
    /// Returns whether the queue must not be polled yet.
    #[inline]
    pub(crate) fn is_active(&mut self) -> bool {
        let is_active = self.until.is_some_and(|until| Instant::now() < until);
        if !is_active {
            self.until = None;
        }
        is_active
    }

    /// Records a poll: the number of frames that it found, and whether it emptied the queue.
    #[inline]
    pub(crate) fn record_poll(&mut self, frames: usize, all: bool) {
        self.found += frames;
        if all {
            self.until = (self.found >= BULK_THRESHOLD).then(|| Instant::now() + POLL_BACKOFF);
            self.found = 0;
        }
    }

    /// Ends the backoff, so that a thread that is about to block polls first.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bulk_makes_it_and_arming_ends_it() {
        let mut backoff = PollBackoff::default();
        backoff.record_poll(BULK_THRESHOLD - 1, true);
        assert!(!backoff.is_active());
        // The frames of two polls add up; the second poll empties the queue.
        backoff.record_poll(BULK_THRESHOLD - 1, false);
        assert!(!backoff.is_active());
        backoff.record_poll(1, true);
        assert!(backoff.until.is_some());
        backoff.end();
        assert!(!backoff.is_active());
        // Frames from before `end` no longer count.
        backoff.record_poll(1, true);
        assert!(!backoff.is_active());
    }

    #[test]
    fn it_ends_by_itself() {
        let mut backoff = PollBackoff::default();
        backoff.record_poll(BULK_THRESHOLD, true);
        std::thread::sleep(POLL_BACKOFF);
        assert!(!backoff.is_active() && backoff.until.is_none());
    }
}
