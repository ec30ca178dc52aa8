//! How often browsers get a new picture.

use std::time::{Duration, Instant};

/// Time between two pictures.
const PICTURE: Duration = Duration::from_millis(50);
/// Time between two lists of stations.
const STATIONS: Duration = Duration::from_secs(1);
/// Making a picture takes at most this part of the time of its thread, which may share its core with a worker.
const SHARE: u32 = 200;
/// Longest time between two pictures: the thread may have been held up while it made one.
const LONGEST: Duration = Duration::from_secs(1);

/// When pictures are due.
#[derive(Default)]
pub(crate) struct Pace {
    /// Time of the next picture; at once if there was none.
    next: Option<Instant>,
    stations: Option<Instant>,
}

impl Pace {
    /// Returns the time until the next picture is due.
    pub(crate) fn left(&self) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Returns whether a picture is due.
    pub(crate) fn is_due(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns whether a list of stations goes with it.
    pub(crate) fn has_stations(&self) -> bool {
        self.stations.is_none_or(|last| last.elapsed() >= STATIONS)
    }

    /// Notes that a picture was begun at this time, and is made; with a list of stations, if it has one.
    pub(crate) fn made(&mut self, begun: Instant, has_stations: bool) {
        self.next = Some(begun + PICTURE.max((begun.elapsed() * SHARE).min(LONGEST)));
        if has_stations {
            self.stations = Some(begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_that_take_long_come_rarely() {
        let mut pace = Pace::default();
        assert!(pace.is_due() && pace.has_stations());
        let begun = Instant::now();
        pace.made(begun, true);
        assert!(!pace.is_due() && pace.left() <= PICTURE && !pace.has_stations());
        let begun = begun.checked_sub(Duration::from_millis(10)).expect("the machine has run for a while");
        pace.made(begun, false);
        assert!(pace.left() > Duration::from_millis(900) && pace.left() <= LONGEST, "{:?}", pace.left());
    }
}
