//! A limit on the rate of frames: a token bucket, kept as the time at which it will be full again (the generic cell rate
//! algorithm, ITU-T I.371, annex A). One word, so that workers share it without locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// See the module.
pub(crate) struct Limit {
    /// Nanoseconds that a frame takes; 0 without a limit.
    interval: u64,
    /// How far ahead of time the bucket may be.
    depth: u64,
    full_again: AtomicU64,
}

impl Limit {
    /// A second has room for `rate` frames, 0 for no limit; at once, for a tenth of them or 32, whichever is more.
    pub(crate) fn new(rate: u64) -> Self {
        let interval = 1_000_000_000_u64.checked_div(rate).map_or(0, |interval| interval.max(1));
        Self { interval, depth: interval.saturating_mul((rate / 10).max(32)), full_again: AtomicU64::new(0) }
    }

    /// Whether there is room for a frame; `now` is asked only if there is a limit.
    pub(crate) fn admits(&self, now: impl FnOnce() -> Duration) -> bool {
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
        let limit = Limit::new(1000);
        let passed = |ms: u64| (0..500).filter(|_| limit.admits(|| Duration::from_millis(ms))).count();
        assert_eq!([passed(0), passed(0), passed(10), passed(10), passed(10_000)], [100, 0, 10, 0, 100]);
        let (slow, none) = (Limit::new(1), Limit::new(0));
        assert_eq!((0..500).filter(|_| slow.admits(|| Duration::ZERO)).count(), 32);
        assert!((0..500).all(|_| none.admits(|| unreachable!())));
        assert!(Limit::new(u64::MAX).admits(|| Duration::ZERO));
    }
}
