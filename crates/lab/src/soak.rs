//! The soak: long-lived processes of `ringpass` whose peers are killed, stopped and restarted at random
//! moments, next to control pairs that must not lose a frame. Run by `make soak`; `docs/campaigns.md` explains
//! the output.

mod process;
mod summary;
mod survivors;
mod victims;

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use process::Launcher;
pub use summary::{Buffers, ControlPair, Growth, Summary, VictimGroup};
use survivors::{LOOK, Survivors};
use victims::VictimSlot;

/// Parameters of a soak.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Path of the `ringpass` program.
    pub ringpass: PathBuf,
    /// Time during which peers are killed.
    pub time: Duration,
    /// Seed of all delays and choices: the same seed gives each process the same ones.
    pub seed: u64,
    /// Makes stalls failures. Not for a machine on which other programs are busy, which hit one pair and not another.
    pub judge_stalls: bool,
}

/// Interval between progress reports.
const PROGRESS: Duration = Duration::from_secs(10);

/// Warm-up before descriptors and memory are measured for the first time: this fraction (1/5) of the time, at
/// most 30 s. What is allocated once, for the first peers, does not count as growth.
const WARM_UP: (u32, Duration) = (5, Duration::from_secs(30));

/// Kills, stops and restarts peers until the time is over or `stop` is set, and returns what happened to the
/// long-lived processes. `progress` is called every ten seconds with the results so far.
///
/// # Errors
///
/// Fails if the long-lived processes cannot be started. Later failures are part of the summary.
pub fn run(settings: &Settings, stop: &AtomicBool, progress: &mut dyn FnMut(&Summary)) -> io::Result<Summary> {
    let folder = tempfile::tempdir()?;
    let launcher = Launcher::new(settings, folder.path())?;
    let mut survivors = Survivors::start(&launcher)?;
    let mut victims = victims::all(&launcher, settings.seed);
    let mut summary = Summary { seed: settings.seed, judge_stalls: settings.judge_stalls, ..Summary::default() };
    let faults = Mutex::new(Vec::new());
    let start = Instant::now();
    let warm_up = (settings.time / WARM_UP.0).min(WARM_UP.1);
    let mut live = |victims: &mut [VictimSlot], until: Duration, survivors: &mut Survivors| {
        victims::live(victims, &faults, |counts| {
            let (mut next, mut next_look) = (start.elapsed() + PROGRESS, start.elapsed() + LOOK);
            while start.elapsed() < until && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                if start.elapsed() >= next_look {
                    next_look += LOOK;
                    survivors.look_for_stalls();
                }
                if start.elapsed() >= next {
                    next += PROGRESS;
                    let (innocents, dead) = survivors.look();
                    summary.look(start.elapsed(), counts, innocents, dead);
                    progress(&summary);
                }
            }
            let (innocents, dead) = survivors.look();
            summary.look(start.elapsed(), counts, innocents, dead);
        });
    };
    live(&mut victims, warm_up, &mut survivors);
    let before = survivors.wait_until_stable(&launcher);
    live(&mut victims, settings.time, &mut survivors);
    survivors.check_growth(&launcher, before, &mut summary);
    survivors.end(&mut summary);
    summary.faults.append(&mut process::lock(&faults));
    Ok(summary)
}
