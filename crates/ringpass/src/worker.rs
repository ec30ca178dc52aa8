//! A worker's side of a run: whether to go on, and what it has done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ringpass_port::{Idle, Wakeable};

use crate::options::Options;

/// What one worker has done. Written by that worker only.
#[derive(Default)]
#[repr(align(128))]
pub struct Tally {
    moved: AtomicU64,
    dropped: AtomicU64,
    busy_cycles: AtomicU64,
}

/// Sums over all workers.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// How long the run has taken so far.
    pub elapsed: Duration,
    /// Packets that were moved.
    pub moved: u64,
    /// Packets that the program dropped.
    pub dropped: u64,
    /// Cycles of the time stamp counter in rounds that moved packets.
    pub busy_cycles: u64,
}

impl Totals {
    /// Sums up.
    pub fn of(tallies: &[Arc<Tally>], elapsed: Duration) -> Self {
        let sum = |field: fn(&Tally) -> &AtomicU64| tallies.iter().map(|t| field(t).load(Ordering::Relaxed)).sum();
        let (moved, dropped) = (sum(|t| &t.moved), sum(|t| &t.dropped));
        Self { elapsed, moved, dropped, busy_cycles: sum(|t| &t.busy_cycles) }
    }

    /// Cycles spent on a packet, without idle rounds.
    pub fn cycles_per_packet(&self) -> f64 {
        (self.busy_cycles as f64 / self.moved.max(1) as f64 * 10.0).round() / 10.0
    }
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// What a run and its workers share.
#[derive(Default)]
pub struct Shared {
    stop: AtomicBool,
    /// Packets of all workers; kept only when there is a limit.
    moved: AtomicU64,
}

impl Shared {
    /// Ends the run.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to end.
    #[inline]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A worker's side of the run.
pub struct Worker {
    /// Largest burst.
    pub batch: usize,
    limit: Option<u64>,
    idle: Idle,
    since: u64,
    tally: Arc<Tally>,
    shared: Arc<Shared>,
}

impl Worker {
    /// A worker, and where it counts.
    pub fn new(options: &Options, shared: &Arc<Shared>) -> (Self, Arc<Tally>) {
        let tally = Arc::new(Tally::default());
        let (batch, limit, idle) = (options.batch, options.count, Idle::new(options.poll));
        (Self { batch, limit, idle, since: cycles(), tally: tally.clone(), shared: shared.clone() }, tally)
    }

    /// Whether to go on.
    #[inline]
    pub fn running(&self) -> bool {
        !self.shared.stopped()
    }

    /// To be called after each round, with the packets that it moved and the queues that may bring more; the same each
    /// time.
    #[inline]
    pub fn after(&mut self, moved: usize, sources: &mut [&mut dyn Wakeable]) {
        if moved > 0 {
            let now = cycles();
            add(&self.tally.busy_cycles, now.wrapping_sub(self.since));
            add(&self.tally.moved, moved as u64);
            self.since = now;
            if let Some(limit) = self.limit
                && self.shared.moved.fetch_add(moved as u64, Ordering::Relaxed) + moved as u64 >= limit
            {
                self.shared.stop();
            }
            self.idle.after(moved, sources);
        } else {
            self.idle.after(0, sources);
            self.since = cycles();
        }
    }

    /// Counts packets that had to be dropped.
    #[inline]
    pub fn dropped(&self, packets: usize) {
        if packets > 0 {
            add(&self.tally.dropped, packets as u64);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.stop();
        }
    }
}

/// The time stamp counter.
#[allow(unsafe_code)]
#[inline]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it reads nothing but the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_worker_stops_all_at_the_limit_and_its_packets_are_counted() {
        let options = crate::Defaults::parse_from(["ringpass", "--count", "100", "--poll"]).options;
        let shared = Arc::new(Shared::default());
        let ((mut one, tally), (mut other, _)) = (Worker::new(&options, &shared), Worker::new(&options, &shared));
        one.after(64, &mut []);
        other.after(35, &mut []);
        one.after(0, &mut []);
        assert!(one.running() && other.running());
        one.after(1, &mut []);
        assert!(!one.running() && !other.running());
        one.dropped(2);
        let totals = Totals::of(&[tally.clone(), tally], Duration::ZERO);
        assert_eq!((totals.moved, totals.dropped), (130, 4));
    }
}
