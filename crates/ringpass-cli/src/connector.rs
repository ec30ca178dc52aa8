//! The subcommand `ringpass connector PATH`, which the sandboxed program starts for itself.

use std::ffi::OsString;
use std::path::PathBuf;

use ringpass::{Error, sandbox};

use crate::own_program::own_command;

/// Connect to a socket for the process at standard input
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES:\n  this is started by ringpass itself")]
pub struct Args {
    /// The socket
    path: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    sandbox::run_connector(&args.path)
}

/// Returns the command line that starts this subcommand, without the path; `None` if this process cannot read its own.
pub fn command() -> Option<Vec<OsString>> {
    own_command("connector")
}
