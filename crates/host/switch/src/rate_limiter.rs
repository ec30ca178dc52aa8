//! A limit on the rate of frames: a token bucket in the form of the generic cell rate algorithm (ITU-T I.371,
//! annex A). Its state is the time at which the bucket will be full again, a single word, so workers share it
//! without locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A token bucket, shared by workers.
pub(crate) struct RateLimiter {
    /// Nanoseconds per frame; 0 for no limit.
    interval: u64,
    /// Nanoseconds by which `full_again` may be ahead of the current time.
    depth: u64,
    full_again: AtomicU64,
}

impl RateLimiter {
    /// Creates a limiter for `rate` frames per second, 0 for no limit. A burst may have a tenth of that or 32
    /// frames, whichever is more.
    pub(crate) fn new(rate: u64) -> Self {
        let interval = 1_000_000_000_u64.checked_div(rate).map_or(0, |interval| interval.max(1));
        Self { interval, depth: interval.saturating_mul((rate / 10).max(32)), full_again: AtomicU64::new(0) }
    }

    /// Returns whether a frame is within the limit, and counts it if so. `now` is called only if there is a
    /// limit.
    pub(crate) fn allow(&self, now: impl FnOnce() -> Duration) -> bool {
        if self.interval == 0 {
            return true;
        }
        let now = now().as_nanos() as u64;
        let take = |full_again: u64| {
            let next = full_again.max(now) + self.interval;
            (next - now <= self.depth).then_some(next)
        };
        self.full_again.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let limit = RateLimiter::new(1000);
        let passed = |ms: u64| (0..500).filter(|_| limit.allow(|| Duration::from_millis(ms))).count();
        assert_eq!([passed(0), passed(0), passed(10), passed(10), passed(10_000)], [100, 0, 10, 0, 100]);
        let (slow, none) = (RateLimiter::new(1), RateLimiter::new(0));
        assert_eq!((0..500).filter(|_| slow.allow(|| Duration::ZERO)).count(), 32);
        assert!((0..500).all(|_| none.allow(|| unreachable!())));
        assert!(RateLimiter::new(u64::MAX).allow(|| Duration::ZERO));
    }
}
