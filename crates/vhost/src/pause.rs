//! When a receiving queue is looked at again.
//!
//! A guest that sends in bulk writes to the very lines that a look fetches: a receiver that is faster than it, and looks
//! again at once, keeps taking them from the guest's core, and both are slower for it. So after frames have come in bulk, the
//! queue is left alone for a moment, as a card moderates its interrupts. Single frames never wait.

use std::time::{Duration, Instant};

/// Frames that came between two looks which found the queue empty; from here on it is bulk.
const BULK: usize = 16;

/// Some hundred frames of a guest that sends as fast as it can, which is less than a ring has. `bench vhost`, from the
/// guest: 1.5 µs were too short where a line takes 500 cycles from core to core, 12 µs hardly better than 6.
const MOMENT: Duration = Duration::from_micros(6);

/// Whether a queue is left alone.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    found: usize,
    until: Option<Instant>,
}

impl Pause {
    /// Whether it still lasts.
    #[inline]
    pub(crate) fn lasts(&mut self) -> bool {
        let lasts = self.until.is_some_and(|until| Instant::now() < until);
        if !lasts {
            self.until = None;
        }
        lasts
    }

    /// To be told of each look: the frames that it found, and whether it took all there were.
    #[inline]
    pub(crate) fn after(&mut self, frames: usize, all: bool) {
        self.found += frames;
        if all {
            self.until = (self.found >= BULK).then(|| Instant::now() + MOMENT);
            self.found = 0;
        }
    }

    /// Ends it: who is about to sleep looks at once.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bulk_makes_it_and_arming_ends_it() {
        let mut pause = Pause::default();
        pause.after(BULK - 1, true);
        assert!(!pause.lasts());
        // In two looks, of which the second takes the rest.
        pause.after(BULK - 1, false);
        assert!(!pause.lasts());
        pause.after(1, true);
        assert!(pause.until.is_some());
        pause.end();
        assert!(!pause.lasts());
        // Nothing of the last ones is left.
        pause.after(1, true);
        assert!(!pause.lasts());
    }

    #[test]
    fn it_ends_by_itself() {
        let mut pause = Pause::default();
        pause.after(BULK, true);
        std::thread::sleep(MOMENT);
        assert!(!pause.lasts() && pause.until.is_none());
    }
}
