//! Send rates and pacing.

use std::str::FromStr;
use std::time::{Duration, Instant};

use super::frame::MAX;
use ringpass::{Burst, RxDecorator, RxQueue, WakeSource};

/// A rate of the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestedRate {
    /// The same on every port.
    Fixed(Rate),
    /// This part of the speed of the port's link, above 0 and at most 1.
    OfLink(f64),
}

impl RequestedRate {
    /// Returns the rate on a link of this speed, in Mbit/s; `None` if it depends on a speed that is not known (0).
    pub fn on_link(self, mbps: u32) -> Option<Rate> {
        match self {
            Self::Fixed(rate) => Some(rate),
            Self::OfLink(part) => (mbps > 0).then(|| Rate::Wire(part * f64::from(mbps) * 1e6)),
        }
    }
}

/// Frames that are sent back to back, and how many of them over time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Average rate.
    pub rate: Rate,
    /// Frames of a burst, at least 1; between two bursts is a pause.
    pub burst: u32,
}

/// A send rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// As fast as the port accepts frames.
    Max,
    /// Frames a second.
    Packets(f64),
    /// Bits of frames a second, without L1 overhead.
    Bits(f64),
    /// Bits a second on the wire.
    Wire(f64),
}

/// Bytes that a frame takes on the wire besides its own: preamble and start of frame, checksum, gap (IEEE 802.3, 3.1.1 and 4.4.2).
const WIRE_OVERHEAD: usize = 8 + 4 + 12;

impl FromStr for RequestedRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "write frames a second (1000, 100k, 1.5M), Gbit/s (2.5G), percent of the link (40%) or max";
        if text == "max" {
            return Ok(Self::Fixed(Rate::Max));
        }
        let number = |text: &str| text.parse().ok().filter(|n: &f64| *n > 0.0 && n.is_finite());
        let split = |unit| text.strip_suffix(unit).and_then(number);
        if let Some(percent) = split('%') {
            return if percent <= 100.0 { Ok(Self::OfLink(percent / 100.0)) } else { Err(EXPECTED.into()) };
        }
        None.or_else(|| number(text).map(Rate::Packets))
            .or_else(|| split('k').map(|n| Rate::Packets(n * 1e3)))
            .or_else(|| split('M').map(|n| Rate::Packets(n * 1e6)))
            .or_else(|| split('G').map(|n| Rate::Bits(n * 1e9)))
            .map(Self::Fixed)
            .ok_or_else(|| EXPECTED.into())
    }
}

impl Rate {
    /// Returns the frames a second of this rate, for frames of `len` bytes on average; `None` without a limit.
    pub fn frames(self, len: f64) -> Option<f64> {
        match self {
            Self::Max => None,
            Self::Packets(rate) => Some(rate),
            Self::Bits(rate) => Some(rate / (8.0 * len)),
            Self::Wire(rate) => Some(rate / (8.0 * (len + WIRE_OVERHEAD as f64))),
        }
    }

    /// Returns the share of each of `workers`.
    pub fn share(self, workers: usize) -> Self {
        match self {
            Self::Max => Self::Max,
            Self::Packets(rate) => Self::Packets(rate / workers as f64),
            Self::Bits(rate) => Self::Bits(rate / workers as f64),
            Self::Wire(rate) => Self::Wire(rate / workers as f64),
        }
    }
}

/// A token bucket that decides when the next frame is due.
pub struct Pacer {
    pace: Pace,
    /// Frames or bits that are due now. The whole burst is due as soon as its first frame is, so this may be below 0.
    credit: f64,
    /// Frames of the present burst that have not been sent.
    rest: u32,
    last: Instant,
}

impl Pacer {
    /// Largest backlog, in seconds of the rate, that a delayed worker catches up with.
    const MAX_CATCH_UP: f64 = 0.1;

    /// Creates a pacer that starts at `now`.
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, credit: 0.0, rest: 0, last: now }
    }

    /// Adds the credit for the time since the last call. To be called before each burst.
    pub fn advance(&mut self, now: Instant) {
        if let Rate::Packets(rate) | Rate::Bits(rate) | Rate::Wire(rate) = self.pace.rate {
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
        match self.pace.rate {
            Rate::Max => None,
            Rate::Packets(rate) => Some((1.0, rate)),
            Rate::Bits(rate) => Some((len as f64 * 8.0, rate)),
            Rate::Wire(rate) => Some(((len + WIRE_OVERHEAD) as f64 * 8.0, rate)),
        }
    }

    /// Returns when a frame of `len` bytes will be due.
    pub fn wake(&self, len: usize) -> WakeSource<'static> {
        if self.rest > 0 {
            return WakeSource::Polled;
        }
        let missing = self.cost(len).map(|(cost, rate)| (cost - self.credit) / rate);
        // Rounded up, so that the frame is due when the timer fires.
        let wait = missing.and_then(|seconds| Duration::try_from_secs_f64(seconds + 1e-9).ok());
        wait.and_then(|wait| self.last.checked_add(wait)).map_or(WakeSource::Polled, WakeSource::At)
    }

    /// Returns whether a frame of `len` bytes is due, and if so takes its credit.
    #[inline]
    pub fn due(&mut self, len: usize) -> bool {
        let Some((cost, _)) = self.cost(len) else { return true };
        if self.rest == 0 && self.credit >= cost {
            self.rest = self.pace.burst;
        }
        let due = self.rest > 0;
        if due {
            self.credit -= cost;
            self.rest -= 1;
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
    pub fn new(source: Box<dyn RxQueue>, pace: Pace) -> Self {
        Self { source, pacer: Pacer::new(pace, Instant::now()), next: Burst::new(1) }
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
            Some(packet) => each(self.pacer.wake(packet.total_len())),
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
            if !self.pacer.due(packet.total_len()) {
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
            assert_eq!(text.parse(), Ok(RequestedRate::Fixed(rate)), "{text}");
            assert_eq!(RequestedRate::Fixed(rate).on_link(0), Some(rate));
        }
        let percent: RequestedRate = "25%".parse().unwrap();
        assert_eq!((percent.on_link(0), percent.on_link(10_000)), (None, Some(Rate::Wire(2.5e9))));
        // The rate of 10 Gbit/s Ethernet (RFC 2544 and others): 14.88 million frames of 60 bytes, without the checksum.
        let frames = "100%".parse::<RequestedRate>().unwrap().on_link(10_000).unwrap().frames(60.0);
        assert_eq!(frames.map(f64::round), Some(14_880_952.0));
        for wrong in ["", "0", "-1", "k", "1g", "1kM", "nan", "inf", "infG", "%", "0%", "100.1%", "-1%"] {
            assert!(wrong.parse::<RequestedRate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_pacer_keeps_its_rate_and_makes_good_a_short_delay_only() {
        let start = Instant::now();
        let sent_after = |rate, len, steps: &[u64]| {
            let mut pacer = Pacer::new(Pace { rate, burst: 1 }, start);
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
        let pacer = Pacer::new(Pace { rate: Rate::Packets(10.0), burst: 1 }, start);
        let WakeSource::At(time) = pacer.wake(60) else { panic!("a time") };
        assert!((100..101).contains(&time.duration_since(start).as_millis()));
        assert!(matches!(Pacer::new(Pace { rate: Rate::Max, burst: 1 }, start).wake(60), WakeSource::Polled));
        assert_eq!(sent_after(Rate::Packets(4e6), 60, &[0, 1000]), 400_000, "100 ms of a held up second");
    }
    #[test]
    fn bursts_are_whole_and_the_pauses_between_them_keep_the_rate() {
        let start = Instant::now();
        for (rate, len) in [(Rate::Packets(1e4), 60), (Rate::Bits(8e7), 1000), (Rate::Wire(8e7), 976)] {
            let mut pacer = Pacer::new(Pace { rate, burst: 64 }, start);
            let mut sent = Vec::new();
            for tenth in 0..=10_000 {
                pacer.advance(start + Duration::from_micros(100 * tenth));
                let mut burst = 0;
                while pacer.due(len) {
                    burst += 1;
                    assert!(burst % 64 == 0 || matches!(pacer.wake(len), WakeSource::Polled));
                }
                if burst > 0 {
                    sent.push((tenth, burst));
                }
            }
            assert!(sent.iter().all(|&(_, burst)| burst == 64), "{sent:?}");
            assert!(sent.windows(2).all(|pair| (63..=65).contains(&(pair[1].0 - pair[0].0))), "{sent:?}");
            assert!((9_920..=10_064).contains(&(64 * sent.len())), "{}", sent.len());
        }
    }
}
