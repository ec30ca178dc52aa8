//! Standard output and standard error. Their readers may go away at any time, which must not cause a panic, as
//! it does with `println!` and `eprintln!`. Clippy's lints keep those out of this program.

use std::collections::VecDeque;
use std::fmt::{self, Arguments};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use ringpass::Error;
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// First error of a write to standard output.
static WRITE_ERROR: OnceLock<io::Error> = OnceLock::new();

/// Exit status that a shell shows for a program ended by SIGPIPE: 128 plus the signal's number.
const INTERRUPTED: u8 = 128 + libc::SIGINT as u8;
const BROKEN_PIPE: u8 = 128 + libc::SIGPIPE as u8;

/// How much is printed besides results and errors.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Verbosity {
    /// Print no notes, and statistics only at the end
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print all notes, and what happens with times
    #[arg(short, long, global = true)]
    verbose: bool,
}

impl Verbosity {
    /// Warnings, errors and results only.
    pub const QUIET: Self = Self { quiet: true, verbose: false };
}

static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

static SUBCOMMAND: OnceLock<String> = OnceLock::new();

/// Sets the name of the subcommand that runs.
pub fn set_subcommand(name: &str) {
    let _ = SUBCOMMAND.set(name.to_owned());
}

/// Returns the name of the subcommand that runs.
pub fn subcommand() -> &'static str {
    SUBCOMMAND.get().map_or("", |name| name)
}

/// Returns whether `-q` was given.
pub fn is_quiet() -> bool {
    VERBOSITY.get().is_some_and(|verbosity| verbosity.quiet)
}

/// Returns whether `-v` was given.
pub fn is_verbose() -> bool {
    VERBOSITY.get().is_some_and(|verbosity| verbosity.verbose)
}

/// Sets how much is printed, and starts the log, to standard error.
pub fn start(verbosity: Verbosity) {
    let Verbosity { quiet, verbose } = verbosity;
    let _ = VERBOSITY.set(verbosity);
    // Warnings include why a guest has lost its session; that guests and back-ends come and go is information.
    let directives = match (quiet, verbose) {
        (true, _) => "warn",
        (_, true) => "info",
        _ => "warn,ringpass_vhost_user=info,ringpass_virtio_user=info",
    };
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(chosen) if !chosen.is_empty() => EnvFilter::new(chosen),
        _ => EnvFilter::new(directives),
    };
    // Internal errors of the logger mean that standard error is gone. It would report them there, and panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LogWriter).log_internal_errors(false);
    if verbose {
        log.finish().with(LogEvents).init();
    } else {
        log.without_time().with_target(false).finish().with(LogEvents).init();
    }
}

/// What was logged last, for those who ask for events.
static LOGGED: Mutex<VecDeque<Value>> = Mutex::new(VecDeque::new());

/// Keeps what is logged, as far as there is room.
struct LogEvents;

impl<S: Subscriber> Layer<S> for LogEvents {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        /// Most that waits to be taken.
        const ROOM: usize = 256;
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        let level = event.metadata().level().as_str().to_lowercase();
        let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() == ROOM {
            logged.pop_front();
        }
        logged.push_back(json!({ "event": "log", "level": level, "message": message.0 }));
    }
}

/// Takes what was logged since the last call, the last few hundred lines at most, as events.
pub fn taken_logs() -> Vec<Value> {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
}

/// Writes the log to standard error.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        LIVE_LINES.store(0, Ordering::Relaxed);
        io::stderr().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Number of lines at the end of the terminal that the next statistics overwrite; 0 once something else has been printed
/// below them.
pub static LIVE_LINES: AtomicUsize = AtomicUsize::new(0);

/// Notices from before the start of the run; `None` afterwards.
static NOTICES: Mutex<Option<Vec<String>>> = Mutex::new(Some(Vec::new()));

/// Prints a notice to standard error, once the run has begun: if that fails, its error is what counts.
pub fn notice(text: &str) {
    match &mut *NOTICES.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(early) if early.iter().any(|before| before == text) => {}
        Some(early) => early.push(text.to_owned()),
        None => note(text),
    }
}

/// Prints the notices up to now, as the run begins.
pub fn print_notices() {
    let early = NOTICES.lock().unwrap_or_else(PoisonError::into_inner).take();
    early.iter().flatten().for_each(|text| note(text));
}

/// Prints a note to standard error, unless there is to be none.
pub fn note(text: &str) {
    if !is_quiet() {
        print_error(format_args!("{text}"));
    }
}

/// Prints a line to standard output, from the arguments of `format!`.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Prints a line to standard error, from the arguments of `format!`.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::print_error(format_args!($($text)*)) };
}

/// Prints a line to standard output. The run ends if that fails.
pub fn print_line(line: &str) {
    outln!("{line}");
}

/// Prints a line to standard output; used by `outln!`. The run ends if that fails.
pub fn print(line: Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout().lock(), "{line}") {
        lost(error);
    }
}

/// Records that standard output cannot be written to, and ends the run.
pub fn lost(error: io::Error) {
    let _ = WRITE_ERROR.set(error);
    ringpass::signals::interrupt();
}

/// Prints a line to standard error; used by `errln!`. Errors are ignored.
pub fn print_error(line: Arguments<'_>) {
    LIVE_LINES.store(0, Ordering::Relaxed);
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Returns the exit status of a run. It is 1, with a message, if the run or its output has failed, and that of
/// SIGPIPE, without a message, if the reader of the output has closed it.
pub fn exit_code(result: Result<(), Error>) -> ExitCode {
    let error = match (result, WRITE_ERROR.get()) {
        (Err(_), _) if crate::signals::interrupted_at_start() => {
            errln!("ringpass: interrupted");
            return INTERRUPTED.into();
        }
        (Err(error), _) => error.to_string(),
        (Ok(()), Some(lost)) if lost.kind() == ErrorKind::BrokenPipe => return BROKEN_PIPE.into(),
        (Ok(()), Some(lost)) => format!("standard output: {lost}"),
        (Ok(()), None) => return ExitCode::SUCCESS,
    };
    errln!("ringpass: {error}");
    ExitCode::FAILURE
}
