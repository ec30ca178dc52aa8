//! The two cores of a benchmark, and the communication cost between them.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use core_affinity::CoreId;
use ringpass::{Error, cycles};

use ringpass_cli::signals::interrupted;

/// Returns the CPUs to use: those named, or the first two that this process may run on.
pub fn pick_two(named: &[usize]) -> Result<[CoreId; 2], Error> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let usable: Vec<usize> = cores.iter().map(|core| core.id).collect();
    let chosen = if named.is_empty() { &usable } else { named };
    match *chosen {
        [a, b, ..] if a != b && usable.contains(&a) && usable.contains(&b) => Ok([a, b].map(|id| CoreId { id })),
        _ if named.is_empty() => Err(Error::Config("this bench needs two CPUs; give the process two".into())),
        _ => Err(Error::Config(format!("--cpu {named:?}: name two of the CPUs that this process may use, {usable:?}"))),
    }
}

/// Returns the cycles that a cache line takes from one core to the other. On a virtual machine this varies with
/// the placement of its CPUs, and so does everything that two cores do together.
pub fn core_to_core_cycles([a, b]: [CoreId; 2]) -> f64 {
    const TURNS: u64 = 5000;
    #[repr(align(128))]
    struct Line(AtomicU64);
    let line = Line(AtomicU64::new(0));
    // The threads increment the value in turn.
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

/// Sleeps for `time`. Fails if Ctrl-C is pressed meanwhile.
pub fn pause(time: Duration) -> Result<(), Error> {
    const TICK: Duration = Duration::from_millis(20);
    let mut left = time;
    while !left.is_zero() {
        check_interrupted()?;
        let turn = left.min(TICK);
        thread::sleep(turn);
        left -= turn;
    }
    check_interrupted()
}

/// Fails if Ctrl-C was pressed.
pub fn check_interrupted() -> Result<(), Error> {
    if interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_time_and_cpus_are_checked() {
        let cores = pick_two(&[]).unwrap();
        assert!(core_to_core_cycles(cores) > 1.0);
        assert!(pick_two(&[0, 0]).is_err() && pick_two(&[0, 100_000]).is_err() && pick_two(&[0]).is_err());
    }
}
