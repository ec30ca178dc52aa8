//! The tests of RFC 2544 with frames of one size.

use std::time::{Duration, Instant};

use super::results::{Limit, Loss, SizeResult, Throughput};
use super::search::Search;
use super::trial::{Direction, Outcome, Trials};
use crate::pktgen::rate::Rate;
use crate::pktgen::stream::Plan;
use crate::progress::progress;
use crate::stats::pps;

/// A test of RFC 2544.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Highest rate without loss (26.1).
    Throughput,
    /// Latency at that rate (26.2).
    Latency,
    /// Loss by load (26.3).
    Loss,
}

/// What is measured, and how.
pub struct Method {
    pub tests: Vec<Test>,
    /// Maximum rate in each direction.
    pub max: Rate,
    /// Bits a second of the link, if known.
    pub line: Option<f64>,
    /// Time of a trial.
    pub time: Duration,
    /// Resolution of the throughput, as a part of it.
    pub resolution: f64,
    /// Acceptable loss in percent.
    pub loss: f64,
    /// Further trials of a rate at which frames were lost.
    pub retries: usize,
    /// Whether frames in reverse show switches where the ports are.
    pub learns: bool,
}

/// Frames of one size.
pub struct Frames {
    /// Bytes of a frame on average.
    pub size: f64,
    /// What is sent in each direction.
    pub plans: Vec<(Direction, Plan)>,
}

/// Measurement of frames of one size.
pub struct Measurement<'a> {
    pub method: &'a Method,
    pub trials: &'a mut Trials,
    pub frames: &'a Frames,
    pub result: SizeResult,
    /// Whether the first trial has not sent a frame.
    pub has_sent_nothing: bool,
}

/// Time after which switches are shown again where the ports are; many forget after five minutes.
const RELEARN: Duration = Duration::from_secs(60);

/// Sends a few frames in reverse, from which switches learn where the ports are (RFC 2544, 23). Returns `None` if the run is to end.
pub fn learn(trials: &mut Trials, frames: &Frames) -> Option<()> {
    for (direction, plan) in frames.plans.iter().filter(|(direction, _)| direction.from != direction.to) {
        let back = Plan { ends: plan.ends.reversed(), vary: Vec::new(), ..plan.clone() };
        trials.run(&[(direction.reversed(), back)], Rate::Packets(100.0), Duration::from_millis(100))?;
    }
    trials.learnt = Instant::now();
    Some(())
}

impl Measurement<'_> {
    /// Does all tests. Returns `None` if the run ended before.
    pub fn run(&mut self) -> Option<()> {
        let method = self.method;
        self.result.line_rate = method.line.and_then(|bits| Rate::Wire(bits).frames(self.frames.size));
        let full = self.trial(method.max)?;
        self.has_sent_nothing = full.numbers.sent == 0;
        if self.has_sent_nothing {
            return None;
        }
        self.result.max_rate = full.offered.round();
        let has = |test| method.tests.contains(&test);
        if has(Test::Throughput) || has(Test::Latency) {
            let (rate, limited_by) = self.throughput(&full)?;
            let bits = rate * 8.0 * self.frames.size;
            self.result.throughput = Some(Throughput {
                frames_per_second: (rate * 10.0).round() / 10.0,
                bits_per_second: bits.round(),
                line_percent: self.result.line_rate.map(|line| (rate / line * 1e4).round() / 100.0),
                limited_by,
            });
            if has(Test::Latency) && rate > 0.0 {
                self.result.latency_us = self.trial(Rate::Packets(rate))?.latency();
            }
        }
        if has(Test::Loss) {
            self.loss(&full)?;
        }
        self.result.complete = true;
        Some(())
    }

    fn trial(&mut self, rate: Rate) -> Option<Outcome> {
        if self.method.learns && self.trials.learnt.elapsed() > RELEARN {
            learn(self.trials, self.frames)?;
        }
        self.result.trials += 1;
        let shown = rate.frames(self.frames.size).map_or("full speed".into(), pps);
        progress(&format!("{} bytes, trial {}: {shown}", self.result.name(), self.result.trials));
        let outcome = self.trials.run(&self.frames.plans, rate, self.method.time)?;
        self.result.reordered += outcome.numbers.reordered;
        self.result.duplicate += outcome.numbers.duplicate;
        Some(outcome)
    }

    /// Repeats a trial until nothing is lost, or as often as allowed; returns the last outcome.
    fn repeated(&mut self, rate: Rate) -> Option<Outcome> {
        let mut outcome = self.trial(rate)?;
        for _ in 0..self.method.retries {
            if self.is_lossless(&outcome) {
                break;
            }
            outcome = self.trial(rate)?;
        }
        Some(outcome)
    }

    fn is_lossless(&self, outcome: &Outcome) -> bool {
        outcome.numbers.sent > 0 && outcome.loss_percent <= self.method.loss
    }

    /// Searches the throughput, in frames a second, given the outcome at the maximum rate.
    fn throughput(&mut self, full: &Outcome) -> Option<(f64, Limit)> {
        let Method { max, resolution, .. } = *self.method;
        let mut again = None;
        for _ in 0..self.method.retries {
            if self.is_lossless(again.as_ref().unwrap_or(full)) {
                break;
            }
            again = Some(self.trial(max)?);
        }
        let full = again.as_ref().unwrap_or(full);
        if self.is_lossless(full) {
            let asked = max.frames(self.frames.size).filter(|asked| full.offered >= asked * (1.0 - resolution));
            return Some((full.offered, if asked.is_some() { Limit::MaxRate } else { Limit::Sender }));
        }
        let returned = full.offered * (1.0 - full.loss_percent / 100.0);
        let mut search = Search::new(full.offered, returned, resolution);
        while let Some(rate) = search.next_rate() {
            let outcome = self.repeated(Rate::Packets(rate))?;
            search.note(rate, outcome.offered, self.is_lossless(&outcome));
        }
        Some((search.passed, if search.is_given_up() { Limit::Sender } else { Limit::Device }))
    }

    /// Measures the loss at 100 %, 90 % and so on of the maximum rate, until two trials have none.
    fn loss(&mut self, full: &Outcome) -> Option<()> {
        self.result.loss.push(Loss::new(100, full));
        for load in (1..10).rev().map(|tenths| tenths * 10) {
            if self.result.loss.iter().rev().take(2).filter(|loss| loss.lost == 0).count() == 2 {
                break;
            }
            let outcome = self.trial(Rate::Packets(full.offered * f64::from(load) / 100.0))?;
            self.result.loss.push(Loss::new(load, &outcome));
        }
        Some(())
    }
}
