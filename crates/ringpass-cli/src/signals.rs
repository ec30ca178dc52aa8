//! Signals that end the program, and the one that asks for statistics.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use ringpass::Error;
use ringpass::signals::{self, SIGNALS};
use ringpass_ipc::WAITS_END;
use signal_hook::SigId;
use signal_hook::consts::SIGUSR1;
use signal_hook::flag;

use crate::systemd;

/// Set by the first signal while ports are opened, and once the program has had [`GRACE`] to end by itself: the next signal
/// ends it at once.
static IMPATIENT: AtomicBool = AtomicBool::new(false);

/// Handlers that set [`IMPATIENT`] and [`WAITS_END`] while ports are opened.
static AT_START: Mutex<Vec<SigId>> = Mutex::new(Vec::new());

/// Time within which signals count as one: `timeout` sends two, to the program and to its process group.
const GRACE: Duration = Duration::from_millis(100);

/// Set by SIGUSR1.
static REPORT_REQUESTED: AtomicBool = AtomicBool::new(false);

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

/// Like [`signals::catch`]. Besides, until [`begin_run`] is called, the first signal ends waits for peers, and the second one
/// the process at once; after [`be_impatient`], the next one does. Handlers are used and not a thread, which would be outside
/// the sandbox.
///
/// # Errors
/// If the kernel refuses a handler.
pub fn catch_first_signal() -> Result<(), Error> {
    let blocked = |errno: nix::Error| signal_error(errno.into());
    // A signal between two registrations would find the first handler only, which ignores it.
    let signals: SigSet = SIGNALS.into_iter().filter_map(|signal| Signal::try_from(signal).ok()).collect();
    signals.thread_block().map_err(blocked)?;
    // In this order, so that the first signal does not find the flag that it sets.
    let shutdown = |&signal: &i32| flag::register_conditional_shutdown(signal, 130, &IMPATIENT).map(drop);
    let registered = SIGNALS.iter().try_for_each(shutdown).map_err(signal_error).and_then(|()| signals::catch());
    let flags = [&IMPATIENT, &WAITS_END];
    let at_start = SIGNALS.iter().flat_map(|&signal| flags.map(|flag| flag::register(signal, flag)));
    let at_start: Result<Vec<_>, _> = at_start.collect();
    signals.thread_unblock().map_err(blocked)?;
    registered?;
    *AT_START.lock().unwrap_or_else(PoisonError::into_inner) = at_start.map_err(signal_error)?;
    Ok(())
}

/// Lets signals end the run in good order from now on: what was waited for at the start is there. Tells those who have started this program so.
pub fn begin_run() {
    for handler in AT_START.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        signal_hook::low_level::unregister(handler);
    }
    IMPATIENT.store(false, Ordering::Relaxed);
    WAITS_END.store(false, Ordering::Relaxed);
    systemd::ready();
    if PART_OF_SERVICE.load(Ordering::Relaxed) && tell_service().is_err() {
        signals::interrupt();
    }
}

/// Set in a program that is part of a service.
static PART_OF_SERVICE: AtomicBool = AtomicBool::new(false);

/// Lets this program end with the service whose part it is: the service holds the other end of standard input, a unix socket.
pub fn be_part_of_service() {
    PART_OF_SERVICE.store(true, Ordering::Relaxed);
}

/// Tells the service that this program is ready, and waits for the service's end on a thread.
fn tell_service() -> io::Result<()> {
    let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.write_all(&[0])?;
    let wait = move || {
        // Nothing is sent.
        while matches!(stream.read(&mut [0]), Ok(1)) {}
        signals::interrupt();
    };
    std::thread::Builder::new().name("service".into()).spawn(wait).map(drop)
}

/// Returns whether a signal has arrived while ports were opened, which ends waits for their peers.
pub fn interrupted_at_start() -> bool {
    WAITS_END.load(Ordering::Relaxed)
}

/// Lets the next signal end the process at once, after a moment in which signals still count as the first one. To be
/// called when the run ends.
pub fn be_impatient() {
    systemd::stopping();
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
