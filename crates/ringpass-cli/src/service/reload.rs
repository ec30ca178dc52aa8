//! SIGHUP: the file is read again, and what differs is changed.
//!
//! The service is in its sandbox and can neither read the file nor open ports. Another process of this program, started before, does both as
//! `ringpass apply` does. It keeps its privileges, and learns of the service what the control socket tells.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use ringpass::Error;
use ringpass::signals::take_hangup;
use tracing::{error, info};

use crate::apply::apply;
use crate::own_program;

/// Set by SIGHUP.
static ASKED: AtomicBool = AtomicBool::new(false);

/// The process that applies the file.
pub(super) struct Reloader(UnixStream);

impl Reloader {
    /// Starts it, and lets SIGHUP ask for it. To be called before the sandbox is entered.
    pub(super) fn start(file: &Path, socket: &Path) -> Result<Self, Error> {
        let failed = |source| Error::os("a process that reads the file again at SIGHUP", source);
        let arguments = [file.as_os_str(), "--socket".as_ref(), socket.as_os_str()];
        let stream = own_program::start("reload", arguments, Stdio::null()).map_err(failed)?;
        take_hangup(&ASKED)?;
        Ok(Self(stream))
    }

    /// Asks it if SIGHUP has arrived since the last call.
    pub(super) fn check(&self) {
        if ASKED.swap(false, Ordering::Relaxed) && (&self.0).write(&[0]).is_err() {
            error!("SIGHUP: the process that reads the file again has ended; use 'ringpass apply'");
        }
    }
}

/// Apply a file whenever the process at standard input asks for it
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES:\n  this is started by ringpass itself")]
pub struct Args {
    /// The file
    file: PathBuf,
    /// Control socket of the service
    #[arg(long)]
    socket: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    while matches!(std::io::stdin().read(&mut [0]), Ok(1)) {
        let mut changes = 0;
        let applied = apply(&args.file, Some(&args.socket), false, &mut |change| {
            changes += 1;
            info!("SIGHUP: {change}");
        });
        match applied {
            Ok(()) if changes == 0 => info!("SIGHUP: nothing differs from {}", args.file.display()),
            Ok(()) => {}
            Err(why) => error!("SIGHUP: {why}"),
        }
    }
    Ok(())
}
