//! How long to look before a sleep: a sleep that was short was not worth it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Rounds of looking before a sleep. Adapts: short sleeps lengthen it, long ones shorten it.
#[derive(Debug)]
pub struct Patience(AtomicU32);

/// Least, first and most: up to some 50 µs, as a sleep and a wake-up take about as long.
const ROUNDS: [u32; 3] = [16, 128, 512];
/// Once in so many rounds another thread is let in, if one waits for this CPU: it may be the one that is waited for.
const COURTESY: u32 = 4;
const SOON: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_micros(80);

impl Default for Patience {
    fn default() -> Self {
        Self(ROUNDS[1].into())
    }
}

impl Patience {
    /// Sleeps at once, always.
    pub fn none() -> Self {
        Self(0.into())
    }

    /// How many rounds now.
    #[inline]
    pub fn rounds(&self) -> u32 {
        self.0.load(Relaxed)
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
        let [least, _, most] = ROUNDS;
        let rounds = self.rounds();
        if rounds == 0 {
            return;
        }
        if time < SOON {
            self.0.store((rounds * 2).min(most), Relaxed);
        } else if time > LONG {
            self.0.store((rounds / 2).max(least), Relaxed);
        }
    }
}
