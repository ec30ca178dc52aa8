//! The search for the highest rate without loss (RFC 2544, 26.1).

/// Further trials in a row in which the sender does not reach the rate, before the search gives up.
const RETRIES: usize = 3;

/// Bounds of the rate, in frames a second, which trials narrow down.
pub struct Search {
    /// Highest rate known to pass.
    pub passed: f64,
    /// Lowest rate known to lose frames.
    failed: f64,
    /// Resolution as a part of the rate.
    resolution: f64,
    /// Rates to be tried before the middle, the last one first.
    guesses: Vec<f64>,
    /// Trials that are left.
    left: usize,
    /// Last trials in a row in which the sender has not reached the rate.
    misses: usize,
}

/// Most trials of a search: more than bisection takes from the fastest link down to a few frames a second.
const MOST: usize = 40;

impl Search {
    /// Begins below a rate that loses frames, and of which `returned` frames a second came back: most devices drop just what exceeds
    /// their limit, so that this is near the rate that is searched.
    pub fn new(failed: f64, returned: f64, resolution: f64) -> Self {
        let guesses = vec![returned * (1.0 + resolution / 2.0), returned * (1.0 - resolution / 2.0)];
        Self { passed: 0.0, failed, resolution, guesses, left: MOST, misses: 0 }
    }

    /// Returns the next rate to try; `None` when the search has ended.
    pub fn next_rate(&mut self) -> Option<f64> {
        if self.is_given_up() {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        // Below one frame a second nothing passes.
        if self.failed - self.passed <= (self.failed * self.resolution).max(1.0) {
            return None;
        }
        while let Some(guess) = self.guesses.pop() {
            if self.passed < guess && guess < self.failed {
                return Some(guess);
            }
        }
        Some((self.passed + self.failed) / 2.0)
    }

    /// Returns whether the search has ended because the sender cannot reach the rates between the bounds.
    pub fn is_given_up(&self) -> bool {
        self.misses > RETRIES
    }

    /// Notes what became of a rate, and the rate that was really sent.
    pub fn note(&mut self, asked: f64, offered: f64, lossless: bool) {
        if !lossless {
            self.failed = asked;
            // What is above has no chance.
            self.guesses.clear();
            return;
        }
        // A sender that was held up has not tried the rate; the one below is known all the same.
        let reached = offered >= asked * (1.0 - self.resolution);
        self.misses = if reached { 0 } else { self.misses + 1 };
        self.passed = self.passed.max(if reached { asked } else { offered.min(asked) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches the limit of a device, of which this many frames come back at the maximum; returns rate and trials.
    fn search(limit: f64, returned: f64) -> (f64, usize) {
        let mut search = Search::new(1e6, returned, 0.01);
        let mut trials = 0;
        while let Some(rate) = search.next_rate() {
            search.note(rate, rate, rate <= limit);
            trials += 1;
        }
        (search.passed, trials)
    }

    #[test]
    fn the_limit_is_found_within_the_resolution() {
        for limit in [2.0f64, 150.0, 20_000.0, 333_333.0, 999_000.0] {
            // A device that passes its limit, one that collapses when overloaded, and one that passes more than it should.
            for returned in [limit, limit / 3.0, (limit * 1.5).min(1e6), 1e6, 0.0] {
                let (found, trials) = search(limit, returned);
                assert!(found <= limit && found >= (limit * 0.989).min(limit - 1.0), "{limit} {returned}: {found}");
                assert!(trials <= 30 && (returned != limit || trials <= 3), "{limit} {returned}: {trials}");
            }
        }
        assert_eq!(search(0.5, 0.0).0, 0.0, "nothing passes");
    }

    #[test]
    fn a_sender_that_never_reaches_a_rate_ends_the_search() {
        let mut search = Search::new(1e6, 9e5, 0.01);
        let mut trials = 0;
        while let Some(rate) = search.next_rate() {
            search.note(rate, 4e5, true);
            trials += 1;
        }
        assert_eq!((search.passed, trials, search.is_given_up()), (4e5, 1 + RETRIES, true));
    }

    #[test]
    fn a_sender_that_was_held_up_once_does_not_end_the_search() {
        let mut search = Search::new(1e6, 1e5, 0.01);
        let mut trials = 0;
        while let Some(rate) = search.next_rate() {
            let offered = if trials == 1 { rate / 2.0 } else { rate };
            search.note(rate, offered, rate <= 5e5);
            trials += 1;
        }
        assert!(search.passed > 4.9e5 && !search.is_given_up(), "{}", search.passed);
    }
}
