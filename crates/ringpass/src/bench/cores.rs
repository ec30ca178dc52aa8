//! The two cores of a bench, and how far they are from each other.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use core_affinity::CoreId;
use ringpass_port::Error;

use crate::run::interrupted;
use crate::worker::cycles;

/// The CPUs to use: those named, or the first two that this process may run on.
pub fn two(named: &[usize]) -> Result<[CoreId; 2], Error> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let usable: Vec<usize> = cores.iter().map(|core| core.id).collect();
    let chosen = if named.is_empty() { &usable } else { named };
    match *chosen {
        [a, b, ..] if a != b && usable.contains(&a) && usable.contains(&b) => Ok([a, b].map(|id| CoreId { id })),
        _ if named.is_empty() => Err(Error::Other("this bench needs two CPUs; give the process two".into())),
        _ => Err(Error::Other(format!("--cpu {named:?}: name two of the CPUs that this process may use, {usable:?}"))),
    }
}

/// Cycles that a cache line takes from one core to the other. On a virtual machine it changes with where its CPUs are
/// run, and with it all that two cores do together.
pub fn distance([a, b]: [CoreId; 2]) -> f64 {
    const TURNS: u64 = 5000;
    #[repr(align(128))]
    struct Line(AtomicU64);
    let line = Line(AtomicU64::new(0));
    // Each adds one, in turn.
    let play = |core, mine: u64| {
        core_affinity::set_for_current(core);
        let start = cycles();
        for turn in 0..TURNS {
            while line.0.load(Ordering::Acquire) != 2 * turn + mine {
                spin_loop();
            }
            line.0.store(2 * turn + mine + 1, Ordering::Release);
        }
        cycles() - start
    };
    let taken = thread::scope(|scope| {
        let other = scope.spawn(|| play(b, 1));
        let taken = scope.spawn(|| play(a, 0)).join();
        other.join().and(taken)
    });
    taken.map_or(0.0, |taken| taken as f64 / (2 * TURNS) as f64)
}

/// Waits; an error if Ctrl-C comes meanwhile.
pub fn pause(time: Duration) -> Result<(), Error> {
    const TICK: Duration = Duration::from_millis(20);
    let mut left = time;
    while !left.is_zero() {
        go_on()?;
        let turn = left.min(TICK);
        thread::sleep(turn);
        left -= turn;
    }
    go_on()
}

/// An error if Ctrl-C has come.
pub fn go_on() -> Result<(), Error> {
    if interrupted() { Err(Error::Other("interrupted".into())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_time_and_cpus_are_checked() {
        let cores = two(&[]).unwrap();
        assert!(distance(cores) > 1.0);
        assert!(two(&[0, 0]).is_err() && two(&[0, 100_000]).is_err() && two(&[0]).is_err());
    }
}
