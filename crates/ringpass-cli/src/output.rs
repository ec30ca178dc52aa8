//! Standard output and standard error. Their readers may go away at any time, which must not cause a panic, as
//! it does with `println!` and `eprintln!`. Clippy's lints keep those out of this program.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use ringpass::Error;

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
    /// Form of the log on standard error: text, json, or journal, for systemd's [default: journal under systemd, else text]
    #[arg(long, global = true, value_name = "FORM")]
    pub(crate) log: Option<LogForm>,
}

/// Form of the log.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
    /// Entries of systemd's journal.
    Journal,
}

impl Verbosity {
    /// Warnings, errors and results only.
    pub const QUIET: Self = Self { quiet: true, verbose: false, log: None };
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

/// Sets how much is printed.
pub fn set_verbosity(verbosity: Verbosity) {
    let _ = VERBOSITY.set(verbosity);
}

/// Returns whether `-q` was given.
pub fn is_quiet() -> bool {
    VERBOSITY.get().is_some_and(|verbosity| verbosity.quiet)
}

/// Returns whether `-v` was given.
pub fn is_verbose() -> bool {
    VERBOSITY.get().is_some_and(|verbosity| verbosity.verbose)
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
