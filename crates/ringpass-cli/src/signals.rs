//! Signals that end the program.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use ringpass::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Set by SIGINT, SIGTERM and SIGHUP, and when standard output cannot be written to.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends the run as Ctrl-C does.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Returns whether the run was interrupted by a signal or by a failed write to standard output.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Installs handlers for SIGINT, SIGTERM and SIGHUP, which then set a flag instead of ending the process.
///
/// # Errors
/// If the kernel refuses a handler.
pub fn catch_signals() -> Result<(), Error> {
    SIGNALS.iter().try_for_each(|&signal| flag::register(signal, &INTERRUPTED).map(drop)).map_err(signal_error)
}

/// Like [`catch_signals`], but the second signal ends the process at once. Handlers are used and not a thread, which
/// would be outside the sandbox.
///
/// # Errors
/// If the kernel refuses a handler.
pub fn catch_first_signal() -> Result<(), Error> {
    let blocked = |errno: nix::Error| signal_error(errno.into());
    // A signal between the two registrations would find the first handler only, which ignores it.
    let signals: SigSet = SIGNALS.into_iter().filter_map(|signal| Signal::try_from(signal).ok()).collect();
    signals.thread_block().map_err(blocked)?;
    // In this order, so that the first signal does not find the flag that it sets.
    let shutdown = |&signal: &i32| flag::register_conditional_shutdown(signal, 130, &INTERRUPTED).map(drop);
    let registered = SIGNALS.iter().try_for_each(shutdown).map_err(signal_error).and_then(|()| catch_signals());
    signals.thread_unblock().map_err(blocked)?;
    registered
}

fn signal_error(source: io::Error) -> Error {
    Error::os("taking Ctrl-C", source)
}
