//! How long to look before a sleep: a sleep that was short was not worth it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Rounds of looking before a sleep. Adapts: short sleeps lengthen it, long ones shorten it. May be shared by threads.
#[derive(Debug)]
pub struct Patience {
    rounds: AtomicU32,
    least: u32,
    most: u32,
    /// A sleep that was shorter was not worth it; one that was longer was.
    soon: Duration,
    long: Duration,
}

/// Once in so many rounds another thread is let in, if one waits for this CPU: it may be the one that is waited for.
const COURTESY: u32 = 4;

/// That of a program at its rings: up to some 50 µs, as a sleep and a wake-up take about as long.
impl Default for Patience {
    fn default() -> Self {
        Self::new([16, 128, 512], [Duration::from_micros(50), Duration::from_micros(80)])
    }
}

impl Patience {
    /// Of rounds at least, at first and at most; and for how long a sleep is short, and from when on it is long.
    pub fn new([least, first, most]: [u32; 3], [soon, long]: [Duration; 2]) -> Self {
        Self { rounds: first.into(), least, most, soon, long }
    }

    /// Sleeps at once, always.
    pub fn none() -> Self {
        Self::new([0; 3], [Duration::ZERO; 2])
    }

    /// How many rounds now.
    #[inline]
    pub fn rounds(&self) -> u32 {
        self.rounds.load(Relaxed)
    }

    /// Between two looks.
    #[inline]
    pub fn pass(round: u32) {
        if round.is_multiple_of(COURTESY) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// A sleep took so long.
    pub fn slept(&self, time: Duration) {
        let rounds = self.rounds();
        if time < self.soon {
            self.rounds.store((rounds * 2).min(self.most), Relaxed);
        } else if time > self.long {
            self.rounds.store((rounds / 2).max(self.least), Relaxed);
        }
    }
}
