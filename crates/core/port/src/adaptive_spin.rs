//! How long to poll before a sleep: a sleep that was short was not worth it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Number of rounds to poll before a sleep. Adapts: short sleeps increase it, long ones decrease it. May be
/// shared by threads.
#[derive(Debug)]
pub struct AdaptiveSpin {
    rounds: AtomicU32,
    least: u32,
    most: u32,
    /// A shorter sleep was not worth it.
    soon: Duration,
    /// A longer sleep was worth it.
    long: Duration,
}

/// Every n-th round yields the CPU to another thread that waits for it, as that may be the thread whose work is
/// awaited.
const YIELD_INTERVAL: u32 = 4;

/// Values for a program at its rings: up to some 50 µs, as a sleep and a wake-up take about as long.
impl Default for AdaptiveSpin {
    fn default() -> Self {
        Self::new([16, 128, 512], [Duration::from_micros(50), Duration::from_micros(80)])
    }
}

impl AdaptiveSpin {
    /// Creates a spin of `first` rounds, which stays between `least` and `most`. Sleeps below `soon` are short,
    /// sleeps above `long` are long.
    pub fn new([least, first, most]: [u32; 3], [soon, long]: [Duration; 2]) -> Self {
        Self { rounds: first.into(), least, most, soon, long }
    }

    /// Creates a spin of no rounds, which always sleeps at once.
    pub fn none() -> Self {
        Self::new([0; 3], [Duration::ZERO; 2])
    }

    /// Returns the present number of rounds.
    #[inline]
    pub fn rounds(&self) -> u32 {
        self.rounds.load(Relaxed)
    }

    /// Pauses between two polls: spins, or yields the CPU every few rounds.
    #[inline]
    pub fn spin_or_yield(round: u32) {
        if round.is_multiple_of(YIELD_INTERVAL) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Records that a sleep took `time`, and adapts the number of rounds.
    pub fn record_sleep(&self, time: Duration) {
        let rounds = self.rounds();
        if time < self.soon {
            self.rounds.store((rounds * 2).min(self.most), Relaxed);
        } else if time > self.long {
            self.rounds.store((rounds / 2).max(self.least), Relaxed);
        }
    }
}
