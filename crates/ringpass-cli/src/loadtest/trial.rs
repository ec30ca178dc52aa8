//! Trials: frames of one kind at one rate for a while, and what became of them.

use std::slice;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use ringpass::{Mempool, Worker};
use serde::Serialize;

use super::port_worker::{Order, Sending};
use crate::pktgen::generator::{Generator, PacedStream, Share};
use crate::pktgen::rate::{Pace, Rate};
use crate::pktgen::returned::{Numbers, ReturnStats, ReturnTracker, micros, sending_time};
use crate::pktgen::stream::{Plan, Stream};

/// A way that frames take through the device: numbers of ports.
#[derive(Clone, Copy)]
pub struct Direction {
    /// Port that sends.
    pub from: usize,
    /// Port that receives.
    pub to: usize,
}

impl Direction {
    /// Returns the other way.
    pub fn reversed(self) -> Self {
        Self { from: self.to, to: self.from }
    }
}

/// Outcome of a trial, of all directions together.
pub struct Outcome {
    /// Frames a second that were sent, in the direction with fewer of them.
    pub offered: f64,
    /// Part of the frames that did not come back, in percent, in the direction that lost more.
    pub loss_percent: f64,
    /// Frames that were sent and came back, in all directions.
    pub numbers: Numbers,
}

/// Latencies of a trial in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    pub min: f64,
    pub avg: f64,
    pub p50: f64,
    pub p99: f64,
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    pub max: f64,
    /// Mean difference between a frame and the one that arrived before it.
    pub jitter: f64,
}

impl Outcome {
    /// Returns the number of frames that did not come back.
    pub fn lost(&self) -> u64 {
        self.numbers.sent.saturating_sub(self.numbers.returned)
    }

    /// Returns the latencies, if frames came back.
    pub fn latency(&self) -> Option<Latency> {
        let numbers = &self.numbers;
        let all = numbers.round_trips.as_ref().filter(|_| numbers.returned > 0)?;
        // The histogram rounds up.
        let at = |quantile| micros(all.value_at_quantile(quantile).min(numbers.round_trip_max));
        Some(Latency {
            min: micros(all.min()),
            avg: micros(numbers.round_trip_sum / numbers.returned),
            p50: at(0.5),
            p99: at(0.99),
            p99_9: at(0.999),
            max: micros(numbers.round_trip_max),
            jitter: micros(numbers.round_trip_change_sum / (numbers.returned - 1).max(1)),
        })
    }
}

/// Gives orders to the workers of the ports.
pub struct Trials {
    /// Those of each port.
    pub orders: Vec<Sender<Order>>,
    /// Pool that the frames come from.
    pub pool: Mempool,
    /// Longest wait for the last frames.
    pub wait: Duration,
    /// Number of the next trial, by which its frames are told from those of others.
    pub run: u16,
    /// When switches were last shown where the ports are.
    pub learnt: Instant,
    /// The worker that runs the trials.
    pub worker: Worker,
}

/// Time in which the workers of the ports notice an order before the first frame is due.
const PREPARATION: Duration = Duration::from_millis(5);

/// Time between two looks at whether all frames have come back.
const PAUSE: Duration = Duration::from_millis(1);

impl Trials {
    /// Sends frames at this rate for a while, each plan in its direction. Returns `None` if the run is to end.
    pub fn run(&mut self, plans: &[(Direction, Plan)], rate: Rate, time: Duration) -> Option<Outcome> {
        let mut ready = PREPARATION;
        let (orders, all) = loop {
            let (begun, run) = (Instant::now(), self.run);
            let prepared = self.prepare(plans, rate, begun + ready, time);
            // The memory of many flows takes a while to be made.
            if begun.elapsed() < ready / 2 {
                break prepared;
            }
            (ready, self.run) = (4 * begun.elapsed(), run);
        };
        for (to, order) in self.orders.iter().zip(orders) {
            to.send(order).ok()?;
        }
        self.until(None, || all.iter().all(|stats| sending_time(slice::from_ref(stats)).is_some()))?;
        let is_back = |stats: &Arc<ReturnStats>| stats.is_complete();
        self.until(Some(Instant::now() + self.wait), || all.iter().all(is_back))?;
        let time = sending_time(&all).unwrap_or(time).as_secs_f64();
        all.iter().for_each(|stats| stats.end());
        let each: Vec<Numbers> = all.iter().map(|stats| stats.numbers()).collect();
        let offered = each.iter().map(|numbers| numbers.sent).min()? as f64 / time;
        let loss = |numbers: &Numbers| {
            numbers.sent.saturating_sub(numbers.returned) as f64 * 100.0 / numbers.sent.max(1) as f64
        };
        let loss_percent = each.iter().map(loss).fold(0.0, f64::max);
        Some(Outcome { offered, loss_percent, numbers: each.into_iter().reduce(Numbers::plus)? })
    }

    /// Makes the orders for a trial that begins at `start`, and the counters of its directions.
    fn prepare(
        &mut self,
        plans: &[(Direction, Plan)],
        rate: Rate,
        start: Instant,
        time: Duration,
    ) -> (Vec<Order>, Vec<Arc<ReturnStats>>) {
        let mut orders: Vec<Order> = self.orders.iter().map(|_| Order::default()).collect();
        let mut all = Vec::new();
        for (direction, plan) in plans {
            let mut plan = Plan { epoch: start, ..plan.clone() };
            plan.ends.run = self.run;
            self.run = self.run.wrapping_add(1);
            let stats = Arc::new(ReturnStats::new(start, 1, false));
            let tracker = || ReturnTracker::new(&plan.ends, plan.flows.end as usize, &stats, 0);
            let stream = PacedStream { stream: Stream::new(&plan), share: Share::Weight(1) };
            let pace = Pace { rate, burst: 1 };
            let generator = Generator::new(vec![stream], pace, self.pool.cache(), start);
            orders[direction.to].receiving = Some(tracker());
            orders[direction.from].sending = Some(Sending { generator, tracker: tracker(), start, end: start + time });
            all.push(stats);
        }
        (orders, all)
    }

    /// Waits until something is done, or a time is reached. Returns `None` if the run is to end.
    fn until(&self, limit: Option<Instant>, mut done: impl FnMut() -> bool) -> Option<()> {
        while !done() && limit.is_none_or(|limit| Instant::now() < limit) {
            self.worker.running().then_some(())?;
            thread::sleep(PAUSE);
        }
        self.worker.running().then_some(())
    }
}
