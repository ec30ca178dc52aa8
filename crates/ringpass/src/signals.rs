//! Signals that end a program in good order.

use std::sync::atomic::{AtomicBool, Ordering};

use ringpass_port::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Set by the signals.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Signals that end a program: Ctrl-C, a request to terminate, and the end of the terminal.
pub const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Installs handlers for [`SIGNALS`], after which these set a flag instead of ending the process.
///
/// ```
/// ringpass::signals::catch()?;
/// assert!(!ringpass::signals::interrupted());
/// # Ok::<(), ringpass::Error>(())
/// ```
///
/// # Errors
/// If the kernel refuses a handler.
pub fn catch() -> Result<(), Error> {
    let registered = SIGNALS.iter().try_for_each(|&signal| flag::register(signal, &INTERRUPTED).map(drop));
    registered.map_err(|source| Error::os("taking Ctrl-C", source))
}

/// Returns whether one of the signals has arrived, or [`interrupt`] was called.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Ends the run as Ctrl-C does.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}
