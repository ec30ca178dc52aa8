//! Two workers that each forward between a pair of ports of their own, against one of them alone: what they share costs cycles.

use std::sync::Barrier;

use core_affinity::CoreId;
use ringpass::Error;
use serde::Serialize;

use super::cores;
use super::measure::{Bench, Cell, Samples, Stage};
use super::median::median;

/// Cycles per packet of a worker.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TwoWorkers {
    /// Alone.
    pub one_worker: f64,
    /// Of each of two that work at the same time.
    pub two_workers: f64,
    /// Median of the ratios of pairs of runs that follow each other.
    pub ratio: f64,
}

/// Runs of each kind.
const RUNS: usize = 7;

/// Measures one worker and two, in turns, each for `rounds` rounds. Returns `None` if this process may use one CPU only.
pub fn measure(cell: &Cell, rounds: usize) -> Result<Option<TwoWorkers>, Error> {
    let Ok(cpus) = cores::pick_two(&[]) else { return Ok(None) };
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        cores::check_interrupted()?;
        let one = run(cell, rounds, &cpus[..1])?;
        runs.push([one, run(cell, rounds, &cpus)?]);
    }
    let of = |workers: usize| median(runs.iter().map(|run| run[workers]));
    let ratio = median(runs.iter().map(|[one, two]| two / one));
    Ok(Some(TwoWorkers { one_worker: of(0), two_workers: of(1), ratio }))
}

/// Returns the cycles per packet of workers on these CPUs, on average over the workers.
fn run(cell: &Cell, rounds: usize, cpus: &[CoreId]) -> Result<f64, Error> {
    let start = Barrier::new(cpus.len());
    let work = |cpu: CoreId| {
        core_affinity::set_for_current(cpu);
        let bench = Bench::new(cell);
        start.wait();
        let mut samples = Samples::default();
        bench?.run(rounds, &mut samples)?;
        let [median, ..] = samples.summary(Stage::Total);
        Ok(median)
    };
    let work = &work;
    let cycles = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || work(cpu))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a worker ends by itself"))
            .collect::<Result<Vec<f64>, Error>>()
    })?;
    Ok(cycles.iter().sum::<f64>() / cycles.len() as f64)
}

#[cfg(test)]
mod tests {
    use ringpass::PageSize;

    use super::*;
    use crate::rig::Driver;

    #[test]
    fn both_workers_forward_all_frames() {
        let cell = Cell {
            driver: Driver::Ixgbe,
            batch: 32,
            ring: 64,
            pages: PageSize::Ordinary,
            offloads: false,
            vector: true,
        };
        // `Bench::run` fails if a frame is missing.
        assert!(measure(&cell, 3).unwrap().is_none_or(|result| result.one_worker > 0.0 && result.two_workers > 0.0));
    }
}
