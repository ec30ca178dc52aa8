//! Standard output and standard error. Their readers may go away at any time, which must not cause a panic, as
//! it does with `println!` and `eprintln!`. Clippy's lints keep those out of this program.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use ringpass::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// First error of a write to standard output.
static WRITE_ERROR: OnceLock<io::Error> = OnceLock::new();

/// Exit status that a shell shows for a program ended by SIGPIPE: 128 plus the signal's number.
const INTERRUPTED: u8 = 128 + libc::SIGINT as u8;
const BROKEN_PIPE: u8 = 128 + libc::SIGPIPE as u8;

/// Starts the log, to standard error.
pub fn start_log() {
    // Warnings are on by default; they include why a guest has lost its session.
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    // Internal errors of the logger mean that standard error is gone. It would report them there, and panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.log_internal_errors(false).init();
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
    crate::signals::interrupt();
}

/// Prints a line to standard error; used by `errln!`. Errors are ignored.
pub fn print_error(line: Arguments<'_>) {
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
