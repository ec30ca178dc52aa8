//! Results of frames of one size: JSON for programs, tables for people.

use serde::Serialize;

use super::trial::{Latency, Outcome};
use crate::stats::{bps, grouped, pps};
use crate::table::{self, row};

/// What limits the throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The device: above this rate it loses frames.
    Device,
    /// The sender, which sent no faster.
    Sender,
    /// The maximum rate.
    MaxRate,
}

/// Highest rate without loss.
#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// Frames a second in each direction.
    pub frames_per_second: f64,
    /// Bits of frames a second, in each direction.
    pub bits_per_second: f64,
    /// Rate in percent of the link's.
    pub line_percent: Option<f64>,
    pub limited_by: Limit,
}

/// Loss at one rate.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// Percent of the maximum rate.
    pub load_percent: u32,
    /// Frames a second that were sent in each direction.
    pub offered: f64,
    pub sent: u64,
    pub returned: u64,
    pub lost: u64,
    pub loss_percent: f64,
    pub reordered: u64,
    pub duplicate: u64,
}

impl Loss {
    /// Creates a row from the outcome of a trial.
    pub fn new(load_percent: u32, outcome: &Outcome) -> Self {
        let numbers = &outcome.numbers;
        Self {
            load_percent,
            offered: outcome.offered.round(),
            sent: numbers.sent,
            returned: numbers.returned,
            lost: outcome.lost(),
            loss_percent: (outcome.loss_percent * 1e6).round() / 1e6,
            reordered: numbers.reordered,
            duplicate: numbers.duplicate,
        }
    }
}

/// Results of frames of one size.
#[derive(Clone, Debug, Serialize)]
pub struct SizeResult {
    pub event: &'static str,
    /// Bytes of a frame without its checksum, on average.
    pub size: f64,
    /// Frames a second of the link's speed, if that is known.
    pub line_rate: Option<f64>,
    /// Frames a second that were sent at the maximum rate.
    pub max_rate: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// By load, the highest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loss: Vec<Loss>,
    /// Trials so far.
    pub trials: usize,
    /// Reordered frames of all trials.
    pub reordered: u64,
    /// Duplicate frames of all trials.
    pub duplicate: u64,
    /// Whether all trials were done.
    pub complete: bool,
}

impl SizeResult {
    /// Creates the result for frames of this size, before the first trial.
    pub fn new(size: f64) -> Self {
        Self {
            event: "result",
            size,
            line_rate: None,
            max_rate: 0.0,
            throughput: None,
            latency_us: None,
            loss: Vec::new(),
            trials: 0,
            reordered: 0,
            duplicate: 0,
            complete: false,
        }
    }

    /// Returns the size for people.
    pub fn name(&self) -> String {
        if self.size.fract() == 0.0 { format!("{}", self.size) } else { "mix".into() }
    }
}

/// A table with its title; the first row is the head.
pub struct Table {
    pub title: &'static str,
    pub rows: Vec<Vec<String>>,
}

/// Returns the tables of the tests that were done.
pub fn tables(results: &[SizeResult]) -> Vec<Table> {
    let all = [throughput(results), latency(results), loss(results)];
    all.into_iter().filter(|table| table.rows.len() > 1).collect()
}

/// Prints the tables.
pub fn print(results: &[SizeResult]) {
    tables(results).iter().for_each(|table| table::print(table.title, &table.rows));
}

fn throughput(results: &[SizeResult]) -> Table {
    let mut rows = vec![row(["bytes", "frames", "bits", "of line", "limited by", "reordered", "duplicate"])];
    for result in results {
        let Some(Throughput { frames_per_second, bits_per_second, line_percent, limited_by }) = &result.throughput
        else {
            continue;
        };
        let limit = match limited_by {
            Limit::Device => "device",
            Limit::Sender => "sender",
            Limit::MaxRate => "maximum rate",
        };
        let line = line_percent.map_or("-".into(), |percent| format!("{percent:.1} %"));
        let (reordered, duplicate) = (grouped(result.reordered), grouped(result.duplicate));
        let [frames, bits] = [pps(*frames_per_second), bps(*bits_per_second)];
        rows.push(row([&result.name(), &frames, &bits, &line, limit, &reordered, &duplicate]));
    }
    Table { title: "throughput (RFC 2544, 26.1), in each direction", rows }
}

fn latency(results: &[SizeResult]) -> Table {
    let mut rows = vec![row(["bytes", "min", "average", "p50", "p99", "p99.9", "max", "jitter"])];
    for result in results {
        let Some(Latency { min, avg, p50, p99, p99_9, max, jitter }) = &result.latency_us else { continue };
        let times = [min, avg, p50, p99, p99_9, max, jitter].map(|us| format!("{us:.1}"));
        rows.push([vec![result.name()], times.to_vec()].concat());
    }
    Table { title: "latency at the throughput (RFC 2544, 26.2), in µs", rows }
}

fn loss(results: &[SizeResult]) -> Table {
    let mut loads: Vec<u32> = results.iter().flat_map(|result| &result.loss).map(|loss| loss.load_percent).collect();
    loads.sort_unstable_by(|a, b| b.cmp(a));
    loads.dedup();
    let head = |load: &u32| format!("{load} %");
    let mut rows = vec![["bytes".into(), "100 % is".into()].into_iter().chain(loads.iter().map(head)).collect()];
    for result in results.iter().filter(|result| !result.loss.is_empty()) {
        let mut cells = vec![result.name(), pps(result.max_rate)];
        for load in &loads {
            let loss = result.loss.iter().find(|loss| loss.load_percent == *load);
            cells.push(loss.map_or("-".into(), |loss| percent(loss.loss_percent)));
        }
        rows.push(cells);
    }
    Table { title: "frame loss by load (RFC 2544, 26.3), in percent", rows }
}

/// Formats a loss, so that a small one is not shown as none.
pub fn percent(loss: f64) -> String {
    match loss {
        0.0 => "0".into(),
        small if small < 0.01 => "<0.01".into(),
        _ => format!("{loss:.2}"),
    }
}
