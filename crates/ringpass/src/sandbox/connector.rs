//! Connections from inside the sandbox, which allows neither `socket` nor `connect`: a small process makes them.
//!
//! It is this program once more, started before the sandbox is entered and in a sandbox of its own. It is told one path
//! on its command line and nothing but "connect" after that, so whoever takes over the process with the packets reaches
//! this one socket, and no other service of the user's. It ends with the process that has started it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use ringpass_peer::{connect_through, has_helper, serve_connects};
use ringpass_port::Error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{Ports, Sandbox, files, privileges, syscalls};
use crate::options::Options;

/// What was started, for the notes at start.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The notes on connectors.
pub(super) fn notes() -> Vec<String> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Starts the connector of a port that will connect to this path again and again. To be called before the sandbox is
/// entered; without one, the process connects itself.
pub fn start(path: &Path, options: &Options) -> Result<(), Error> {
    if options.no_sandbox || has_helper(path) {
        return Ok(());
    }
    let failed = |source| Error::Os { what: format!("a process that connects to {}", path.display()), source };
    let (own, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed(errno.into()))?;
    let mut command = Command::new("/proc/self/exe");
    // In a process group of its own: Ctrl-C is for the process that has it.
    command
        .args(loader_arguments().map_err(failed)?)
        .arg("connector")
        .arg(without_links(path))
        .process_group(0)
        .stdin(Stdio::from(other))
        .stdout(Stdio::null());
    // Nobody waits for it: it ends when this process does, which is then nobody's parent.
    let child = command.spawn().map_err(failed)?;
    // That end belongs to the connector alone: when it is gone, so is the connection.
    drop(command);
    connect_through(path, own).map_err(|error| Error::Other(error.to_string()))?;
    let note = format!(
        "process {} keeps its user, and of its capabilities CAP_DAC_OVERRIDE, to connect to {} and to nothing else",
        child.id(),
        path.display()
    );
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    Ok(())
}

/// Returns what stands before this program's own arguments where it was started by a dynamic loader that was named on the
/// command line (`ld.so --library-path … ringpass …`): then `/proc/self/exe` is the loader. Empty otherwise.
fn loader_arguments() -> io::Result<Vec<OsString>> {
    let line = std::fs::read("/proc/self/cmdline")?;
    let line: Vec<&[u8]> =
        line.split_inclusive(|&byte| byte == 0).map(|word| word.strip_suffix(&[0]).unwrap_or(word)).collect();
    let before = (line.len() + 1).saturating_sub(std::env::args_os().len());
    Ok(line.iter().take(before).skip(1).map(|&word| OsStr::from_bytes(word).to_owned()).collect())
}

/// The same place without symbolic links, as far as it is there already.
fn without_links(path: &Path) -> PathBuf {
    let parent = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(parent).unwrap_or_else(|| path.into())
}

/// Connect to a socket for the process at standard input
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES:\n  this is started by ringpass itself")]
pub struct Args {
    /// The socket
    path: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let failed = |source| Error::Os { what: "standard input".into(), source };
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let enter = || -> Result<(), String> {
        privileges::keep_for_connecting()?;
        files::deny_all()?;
        syscalls::restrict(Sandbox::Connector, Ports::default()).map(drop)
    };
    enter().map_err(|why| Error::Other(format!("sandbox: {why}; to run without one: --no-sandbox")))?;
    serve_connects(socket, &args.path);
    Ok(())
}
