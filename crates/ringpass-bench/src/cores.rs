//! The two cores of a benchmark.

use std::thread;
use std::time::Duration;

use core_affinity::CoreId;
use ringpass::Error;

use ringpass::signals::interrupted;
pub use ringpass_cli::cores::core_to_core_cycles;
use ringpass_cli::cores::distance;

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

/// Distances of two cores, as [`distance_during`] names them. Measurements are reported apart by them.
pub const DISTANCES: [&str; 3] = ["near", "far", "changing"];

/// Returns the distance of the cores during measurements that are compared, given [`core_to_core_cycles`] before and after
/// each. It is changing if the host has moved the CPUs meanwhile, so that a line took longer by more than a half: such
/// measurements are not comparable.
pub fn distance_during(cycles: &[f64]) -> &'static str {
    let (min, max) = cycles.iter().fold((f64::MAX, 0.0f64), |(min, max), &now| (min.min(now), max.max(now)));
    if max > 1.5 * min { "changing" } else { distance(min) }
}

/// Returns the samples of rounds with cores of a distance, and those of the same rounds that they are compared with, if there
/// are such. `cycles` returns [`core_to_core_cycles`] before and after a sample.
pub fn at_distance<S: Copy>(
    distance: &str,
    samples: &[S],
    peers: Option<&[S]>,
    cycles: impl Fn(&S) -> [f64; 2],
) -> (Vec<S>, Option<Vec<S>>) {
    let pairs = samples.iter().zip(peers.unwrap_or(samples));
    let pairs = pairs.filter(|(ours, peer)| distance_during(&[cycles(ours), cycles(peer)].concat()) == distance);
    let (samples, compared) = pairs.map(|(ours, peer)| (*ours, *peer)).unzip();
    (samples, peers.map(|_| compared))
}

/// Returns the line above results that were measured with cores of a distance.
pub fn heading(distance: &str) -> String {
    match distance {
        "changing" => "Measured while the distance of the two cores changed, so not to be compared:\n".into(),
        _ => format!("Measured while the two cores were {distance} ones:\n"),
    }
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
        assert_eq!(distance_during(&[100.0, 149.0, 120.0]), "near");
        assert_eq!((distance_during(&[500.0, 640.0]), distance_during(&[100.0, 151.0])), ("far", "changing"));
        assert!(pick_two(&[0, 0]).is_err() && pick_two(&[0, 100_000]).is_err() && pick_two(&[0]).is_err());
    }
}
