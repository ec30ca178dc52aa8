//! The soak: long-lived processes of `ringpass` whose peers are killed, stopped and restarted at random moments, beside
//! innocent pairs that may not lose a frame. `make soak` runs it; `docs/campaigns.md` says how to read what it prints.

mod house;
mod process;
mod seats;
mod summary;

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use house::House;
use process::Launcher;
use seats::Seat;
pub use summary::{Buffers, Growth, Innocent, Lane, Summary};

/// The parameters of a soak.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program.
    pub ringpass: PathBuf,
    /// How long peers are killed.
    pub time: Duration,
    /// Where delays and choices come from: the same seed gives each process the same ones.
    pub seed: u64,
}

/// How often the progress is shown.
const PROGRESS: Duration = Duration::from_secs(10);

/// How much of the time passes before descriptors and memory are measured for the first time: what is made once, for the
/// first peers, is no growth.
const WARM_UP: (u32, Duration) = (5, Duration::from_secs(30));

/// Kills, stops and restarts peers until the time is over or `stop` is set, and says what became of the others. `progress`
/// is called every ten seconds with what is known by then.
///
/// # Errors
///
/// Fails if the long-lived processes cannot be started. What goes wrong later is in the summary.
pub fn run(settings: &Settings, stop: &AtomicBool, progress: &mut dyn FnMut(&Summary)) -> io::Result<Summary> {
    let folder = tempfile::tempdir()?;
    let launcher = Launcher::new(settings, folder.path());
    let mut house = House::start(&launcher)?;
    let mut seats = seats::all(&launcher, settings.seed);
    let mut summary = Summary { seed: settings.seed, ..Summary::default() };
    let faults = Mutex::new(Vec::new());
    let start = Instant::now();
    let warm_up = (settings.time / WARM_UP.0).min(WARM_UP.1);
    let mut live = |seats: &mut [Seat], until: Duration, house: &mut House| {
        seats::live(seats, &faults, |counts| {
            let mut next = start.elapsed() + PROGRESS;
            while start.elapsed() < until && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                if start.elapsed() >= next {
                    next += PROGRESS;
                    summary.look(start.elapsed(), counts, house);
                    progress(&summary);
                }
            }
            summary.look(start.elapsed(), counts, house);
        });
    };
    live(&mut seats, warm_up, &mut house);
    let before = house.settled(&launcher);
    live(&mut seats, settings.time, &mut house);
    house.grown(&launcher, before, &mut summary);
    house.end(&mut summary);
    summary.faults.append(&mut process::lock(&faults));
    Ok(summary)
}
