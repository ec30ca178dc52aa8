//! The subcommand `ringpass connector PATH`, which the sandboxed program starts for itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ringpass::{Error, sandbox};

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

/// Returns the command line that starts a subcommand of this program; `None` if this process cannot read its own.
///
/// If the program was started through a dynamic loader on the command line (`ld.so --library-path … ringpass …`),
/// `/proc/self/exe` is the loader, and needs the arguments before this program's own.
pub fn own_command(subcommand: &str) -> Option<Vec<OsString>> {
    let line = std::fs::read("/proc/self/cmdline").ok()?;
    let line: Vec<&[u8]> =
        line.split_inclusive(|&byte| byte == 0).map(|word| word.strip_suffix(&[0]).unwrap_or(word)).collect();
    let before = (line.len() + 1).saturating_sub(std::env::args_os().len());
    let loader = line.iter().take(before).skip(1).map(|&word| OsStr::from_bytes(word).to_owned());
    Some(["/proc/self/exe".into()].into_iter().chain(loader).chain([subcommand.into()]).collect())
}
