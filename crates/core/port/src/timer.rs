//! Times at which a polling loop has something to do besides packets.

use std::time::{Duration, Instant};

use crate::{WakeSource, Wakeable};

/// A time that comes again after each period, for work such as the ageing of entries. It is one of the sources of an idle loop,
/// so that a sleep ends in time.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use ringpass_port::{Idle, Timer};
///
/// let (mut idle, mut timer) = (Idle::default(), Timer::every(Duration::from_millis(5)));
/// let start = Instant::now();
/// let mut ticks = 0;
/// while ticks < 3 {
///     if timer.is_due(Instant::now()) {
///         ticks += 1;
///     }
///     idle.after(0, &mut [&mut timer]);
/// }
/// assert!(start.elapsed() >= Duration::from_millis(15));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    period: Duration,
    due: Instant,
}

impl Timer {
    /// Creates a timer whose first time is one period from now. A period of 0 is always due.
    pub fn every(period: Duration) -> Self {
        Self { period, due: Instant::now() + period }
    }

    /// Returns whether the time has come, and then sets the next one: a period later, or a period from now if that has passed as
    /// well. To be called once a round, with the time of that round.
    #[inline]
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due += self.period;
            if self.due < now {
                self.due = now + self.period;
            }
        }
        is_due
    }
}

impl Wakeable for Timer {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::At(self.due));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_times_are_not_made_up_for() {
        let second = Duration::from_secs(1);
        let mut timer = Timer::every(second);
        let start = timer.due - second;
        let due: Vec<bool> =
            [0.9, 1.0, 1.0, 2.5, 2.9, 3.0, 9.0, 9.9, 10.0].map(|at| timer.is_due(start + second.mul_f64(at))).into();
        assert_eq!(due, [false, true, false, true, false, true, true, false, true]);
    }
}
