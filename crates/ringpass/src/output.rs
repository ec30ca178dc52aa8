//! Standard output and standard error. Whoever reads them may be gone at any time, which must not end in a panic, as it
//! does with `println!` and `eprintln!`: clippy's lints keep those out of this program.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use ringpass_port::Error;

/// Why standard output could not be written to, the first time.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// What a shell shows of a program that SIGPIPE has ended: 128 and the signal's number.
const BROKEN_PIPE: u8 = 128 + libc::SIGPIPE as u8;

/// Prints a line to standard output, from the arguments of `format!`.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Prints a line to standard error, from the arguments of `format!`.
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::print_error(format_args!($($text)*)) };
}

/// Prints a line to standard output. When nobody reads it any more, the run ends.
pub fn say(line: &str) {
    outln!("{line}");
}

/// See [`outln`].
pub fn print(line: Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout().lock(), "{line}") {
        lost(error);
    }
}

/// Takes note that standard output cannot be written to.
pub fn lost(error: io::Error) {
    let _ = LOST.set(error);
    crate::run::interrupt();
}

/// See [`errln`]. What cannot be said is left unsaid.
pub fn print_error(line: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The exit status of a run: 1 if it has failed or its output has, with a line that says why; that of SIGPIPE, without
/// one, if whoever has read it had seen enough.
pub fn status(result: Result<(), Error>) -> ExitCode {
    let error = match (result, LOST.get()) {
        (Err(error), _) => error.to_string(),
        (Ok(()), Some(lost)) if lost.kind() == ErrorKind::BrokenPipe => return BROKEN_PIPE.into(),
        (Ok(()), Some(lost)) => format!("standard output: {lost}"),
        (Ok(()), None) => return ExitCode::SUCCESS,
    };
    errln!("ringpass: {error}");
    ExitCode::FAILURE
}
