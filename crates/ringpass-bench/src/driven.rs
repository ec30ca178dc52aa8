//! Measurements of modelled cards that a command drives, such as testpmd.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass::{Config, Error, QueuePair, Workers};
use ringpass_cli::native_driver::NativeDriver;
use ringpass_models::ixgbe::Card;

use crate::cores::{check_interrupted, pause};

/// Longest time until the first frames have come through.
const LIMIT: Duration = Duration::from_secs(30);
const WARM_UP: Duration = Duration::from_millis(200);

/// Cards, their wires, and the core that plays them.
pub struct Site<'a, W> {
    pub cards: &'a [Arc<Card>],
    pub wires: W,
    pub core: CoreId,
    /// File for what the command prints.
    pub output: &'a Path,
}

/// Runs a command that drives cards while `measure` measures, which is given a function that says whether the command has ended.
/// The core that plays the cards also calls `beside` in each round. Returns the measurement, and what the command has printed.
pub fn under<T, W: IntoIterator<Item = QueuePair>>(
    mut command: Command,
    Site { cards, wires, core, output }: Site<'_, W>,
    beside: impl FnMut() -> usize + Send + 'static,
    measure: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Error>,
) -> Result<(T, String), Error> {
    let opened = |source| Error::os(format!("{}", output.display()), source);
    let file = File::create(output).map_err(opened)?;
    command.stdin(Stdio::null()).stdout(file.try_clone().map_err(opened)?).stderr(file);
    let mut driver = NativeDriver::start(cards, command)?;
    driver.attach(wires.into_iter().map(Some));
    let (work, running) = driver.split(beside);
    let mut workers = Workers::new(&Config { cpu: vec![core.id], poll: true, ..Config::default() })?;
    let play = |worker| {
        work(worker);
        Ok(())
    };
    let measured = workers.spawn("cards", play).and_then(|()| measure(&|| running.ended()));
    running.interrupt();
    let finished = running.finish();
    workers.stop();
    let joined = workers.join();
    let printed = std::fs::read_to_string(output).map_err(opened)?;
    let measured = measured.map_err(|error| match error {
        Error::Interrupted => error,
        _ => Error::Fault(format!("{error}; last words of the driver: {}", last_words(&printed))),
    })?;
    finished?;
    joined?;
    Ok((measured, printed))
}

/// Returns the last line that is not empty.
pub fn last_words(printed: &str) -> &str {
    printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing")
}

/// Returns the rate of a counter of frames in millions a second, once it counts.
pub fn rate(sent: &dyn Fn() -> u64, time: Duration, ended: &dyn Fn() -> bool) -> Result<f64, Error> {
    let (start, first) = (Instant::now(), sent());
    while sent() < first + 1000 {
        check_interrupted()?;
        if ended() || start.elapsed() > LIMIT {
            return Err(Error::Fault("no frames have come through".into()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    pause(WARM_UP)?;
    let (start, before) = (Instant::now(), sent());
    pause(time)?;
    Ok((sent() - before) as f64 / start.elapsed().as_secs_f64() / 1e6)
}
