//! Send rates and pacing.

use std::str::FromStr;
use std::time::{Duration, Instant};

use super::frame::MAX;
use ringpass::{Burst, RxDecorator, RxQueue, WakeSource};

/// A requested send rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// As fast as the port accepts frames.
    Max,
    /// Frames a second.
    Packets(f64),
    /// Bits of frames a second, without L1 overhead.
    Bits(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let number = |text: &str| text.parse().ok().filter(|n: &f64| *n > 0.0 && n.is_finite());
        let split = |unit| text.strip_suffix(unit).and_then(number);
        None.or_else(|| number(text).map(Self::Packets))
            .or_else(|| split('k').map(|n| Self::Packets(n * 1e3)))
            .or_else(|| split('M').map(|n| Self::Packets(n * 1e6)))
            .or_else(|| split('G').map(|n| Self::Bits(n * 1e9)))
            .ok_or_else(|| "write frames a second (1000, 100k, 1.5M), Gbit/s (2.5G) or max".into())
    }
}

impl Rate {
    /// Returns the frames a second of this rate, for frames of `len` bytes on average; `None` without a limit.
    pub fn frames(self, len: f64) -> Option<f64> {
        match self {
            Self::Max => None,
            Self::Packets(rate) => Some(rate),
            Self::Bits(rate) => Some(rate / (8.0 * len)),
        }
    }

    /// Returns the share of each of `workers`.
    pub fn share(self, workers: usize) -> Self {
        match self {
            Self::Max => Self::Max,
            Self::Packets(rate) => Self::Packets(rate / workers as f64),
            Self::Bits(rate) => Self::Bits(rate / workers as f64),
        }
    }
}

/// A token bucket that decides when the next frame is due.
pub struct Pacer {
    rate: Rate,
    /// Frames or bits that are due now.
    credit: f64,
    last: Instant,
}

impl Pacer {
    /// Largest backlog, in seconds of the rate, that a delayed worker catches up with.
    const MAX_CATCH_UP: f64 = 0.1;

    /// Creates a pacer that starts at `now`.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, credit: 0.0, last: now }
    }

    /// Adds the credit for the time since the last call. To be called before each burst.
    pub fn advance(&mut self, now: Instant) {
        if let Rate::Packets(rate) | Rate::Bits(rate) = self.rate {
            // The limit leaves credit for at least two frames of any size: a late one and the next.
            let one = self.cost(MAX).map_or(0.0, |(cost, _)| cost);
            let most = (rate * Self::MAX_CATCH_UP).max(2.0 * one);
            self.credit = (self.credit + now.duration_since(self.last).as_secs_f64() * rate).min(most);
            self.last = now;
        }
    }

    /// Returns the cost of a frame of `len` bytes, and the rate at which credit grows, in the same unit.
    #[inline]
    fn cost(&self, len: usize) -> Option<(f64, f64)> {
        match self.rate {
            Rate::Max => None,
            Rate::Packets(rate) => Some((1.0, rate)),
            Rate::Bits(rate) => Some((len as f64 * 8.0, rate)),
        }
    }

    /// Returns when a frame of `len` bytes will be due.
    pub fn wake(&self, len: usize) -> WakeSource<'static> {
        let missing = self.cost(len).map(|(cost, rate)| (cost - self.credit) / rate);
        // Rounded up, so that the frame is due when the timer fires.
        let wait = missing.and_then(|seconds| Duration::try_from_secs_f64(seconds + 1e-9).ok());
        wait.and_then(|wait| self.last.checked_add(wait)).map_or(WakeSource::Polled, WakeSource::At)
    }

    /// Returns whether a frame of `len` bytes is due, and if so takes its credit.
    #[inline]
    pub fn due(&mut self, len: usize) -> bool {
        let Some((cost, _)) = self.cost(len) else { return true };
        let due = self.credit >= cost;
        if due {
            self.credit -= cost;
        }
        due
    }
}

/// Delivers the frames of another source at a given rate.
pub struct Paced {
    source: Box<dyn RxQueue>,
    pacer: Pacer,
    /// The next frame, held back until it is due.
    next: Burst,
}

impl Paced {
    /// Creates a paced source that starts now.
    pub fn new(source: Box<dyn RxQueue>, rate: Rate) -> Self {
        Self { source, pacer: Pacer::new(rate, Instant::now()), next: Burst::new(1) }
    }
}

impl RxDecorator for Paced {
    fn inner(&self) -> &dyn RxQueue {
        &*self.source
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        &mut *self.source
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        match self.next.first() {
            Some(packet) => each(self.pacer.wake(packet.len())),
            None => self.source.wake_sources(each),
        }
    }

    /// Returns no timestamps, because the source's last burst is not what is delivered.
    fn rx_timestamps(&self) -> &[u64] {
        &[]
    }

    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        self.pacer.advance(Instant::now());
        while burst.room() > 0 {
            if self.next.is_empty() {
                self.source.rx_burst(&mut self.next);
            }
            let Some(packet) = self.next.pop() else { break };
            if !self.pacer.due(packet.len()) {
                self.next.push(packet);
                break;
            }
            burst.push(packet);
        }
        burst.len() - before
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_are_packets_or_bits() {
        for (text, rate) in [
            ("max", Rate::Max),
            ("1000", Rate::Packets(1e3)),
            ("100k", Rate::Packets(1e5)),
            ("1.5M", Rate::Packets(1.5e6)),
            ("10G", Rate::Bits(1e10)),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for wrong in ["", "0", "-1", "k", "1g", "1kM", "nan", "inf", "infG"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_pacer_keeps_its_rate_and_makes_good_a_short_delay_only() {
        let start = Instant::now();
        let sent_after = |rate, len, steps: &[u64]| {
            let mut pacer = Pacer::new(rate, start);
            let mut sent = 0;
            for &millis in steps {
                pacer.advance(start + Duration::from_millis(millis));
                while pacer.due(len) {
                    sent += 1;
                }
            }
            sent
        };
        let every_millisecond: Vec<u64> = (0..=1000).collect();
        assert!((9_999..=10_000).contains(&sent_after(Rate::Packets(1e4), 60, &every_millisecond)));
        assert!((999_999..=1_000_000).contains(&sent_after(Rate::Bits(8e9), 1000, &every_millisecond)));
        assert!((1..=2).contains(&sent_after(Rate::Packets(1.5), 1514, &[0, 1000])));
        let pacer = Pacer::new(Rate::Packets(10.0), start);
        let WakeSource::At(time) = pacer.wake(60) else { panic!("a time") };
        assert!((100..101).contains(&time.duration_since(start).as_millis()));
        assert!(matches!(Pacer::new(Rate::Max, start).wake(60), WakeSource::Polled));
        assert_eq!(sent_after(Rate::Packets(4e6), 60, &[0, 1000]), 400_000, "100 ms of a held up second");
    }
}
