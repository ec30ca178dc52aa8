//! Signals that end the program, and the one that asks for statistics.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringpass::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

/// Set by SIGINT, SIGTERM and SIGHUP, and when standard output cannot be written to.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Set once the program has had [`GRACE`] to end by itself: the next signal ends it at once.
static IMPATIENT: AtomicBool = AtomicBool::new(false);

/// Time within which signals count as one: `timeout` sends two, to the program and to its process group.
const GRACE: Duration = Duration::from_millis(100);

/// Set by SIGUSR1.
static REPORT_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Ends the run as Ctrl-C does.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Returns whether the run was interrupted by a signal or by a failed write to standard output.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Lets SIGUSR1 ask for statistics, where a subcommand has some, instead of ending the program.
///
/// # Errors
/// If the kernel refuses a handler.
pub fn catch_report_requests() -> Result<(), Error> {
    let registered = flag::register(SIGUSR1, &REPORT_REQUESTED).map(drop);
    registered.map_err(|source| Error::os("taking SIGUSR1", source))
}

/// Returns whether SIGUSR1 has arrived since the last call.
pub fn report_requested() -> bool {
    REPORT_REQUESTED.swap(false, Ordering::Relaxed)
}

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Installs handlers for SIGINT, SIGTERM and SIGHUP, which then set a flag instead of ending the process.
///
/// # Errors
/// If the kernel refuses a handler.
pub fn catch_signals() -> Result<(), Error> {
    SIGNALS.iter().try_for_each(|&signal| flag::register(signal, &INTERRUPTED).map(drop)).map_err(signal_error)
}

/// Like [`catch_signals`], but once [`be_impatient`] was called the next signal ends the process at once. Handlers
/// are used and not a thread, which would be outside the sandbox.
///
/// # Errors
/// If the kernel refuses a handler.
pub fn catch_first_signal() -> Result<(), Error> {
    let shutdown = |&signal: &i32| flag::register_conditional_shutdown(signal, 130, &IMPATIENT).map(drop);
    SIGNALS.iter().try_for_each(shutdown).map_err(signal_error)?;
    catch_signals()
}

/// Lets the next signal end the process at once, after a moment in which signals still count as the first one. To be
/// called when the run ends.
pub fn be_impatient() {
    let wait = || {
        std::thread::sleep(GRACE);
        IMPATIENT.store(true, Ordering::Relaxed);
    };
    if std::thread::Builder::new().name("signals".into()).spawn(wait).is_err() {
        IMPATIENT.store(true, Ordering::Relaxed);
    }
}

fn signal_error(source: io::Error) -> Error {
    Error::os("taking Ctrl-C", source)
}
