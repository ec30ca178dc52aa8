//! Signals that end a program in good order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ringpass_port::Error;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Set by the signals.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// The handler by which SIGHUP sets it.
static HANGUP: Mutex<Option<SigId>> = Mutex::new(None);

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
    let failed = |source| Error::os("taking Ctrl-C", source);
    for signal in SIGNALS {
        let handler = flag::register(signal, &INTERRUPTED).map_err(failed)?;
        if signal == SIGHUP {
            *HANGUP.lock().unwrap_or_else(PoisonError::into_inner) = Some(handler);
        }
    }
    Ok(())
}

/// Lets SIGHUP set this flag from now on, and not end the program. To be called after [`catch`].
///
/// # Errors
/// If the kernel refuses a handler.
pub fn take_hangup(asked: &'static AtomicBool) -> Result<(), Error> {
    flag::register(SIGHUP, asked).map_err(|source| Error::os("taking SIGHUP", source))?;
    if let Some(handler) = HANGUP.lock().unwrap_or_else(PoisonError::into_inner).take() {
        signal_hook::low_level::unregister(handler);
    }
    Ok(())
}

/// Returns whether one of the signals has arrived, or [`interrupt`] was called.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Ends the run as Ctrl-C does.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}
