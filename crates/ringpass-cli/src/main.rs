//! The program `ringpass`; see the library beside it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ringpass_cli::main()
}
