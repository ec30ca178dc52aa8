//! The cost of communication between two cores.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use core_affinity::CoreId;
use ringpass::cycles;

/// Cycles of a hand-over from which on cores are called far from each other. Measured on virtual machines with two CPUs:
/// 80 to 150 where the host has placed them near each other, and 440 to 650 where it has not.
const FAR: f64 = 300.0;

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

/// Returns the word for the distance of two cores, given their [`core_to_core_cycles`].
pub fn distance(core_to_core_cycles: f64) -> &'static str {
    if core_to_core_cycles < FAR { "near" } else { "far" }
}
