//! Connections from inside the sandbox, which allows neither `socket` nor `connect`: a small helper process
//! makes them.
//!
//! The helper is another instance of the application's own program, started before the sandbox is entered and in a sandbox of
//! its own. It gets one path on its command line, and accepts no command other than "connect" afterwards. So an
//! attacker who takes over the process with the packets reaches this one socket and no other service of the
//! user. The helper ends with the process that has started it.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringpass_ipc::{has_helper, register_connect_helper, run_connect_helper};
use ringpass_port::Error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{Needs, Sandbox, files, privileges, syscalls};

/// Starts the connector of a port that may reconnect to this path, by `command`, and notes it in `needs`. To be called before the sandbox is
/// entered. Without a sandbox there is no connector, and the process connects itself.
pub(crate) fn start(
    path: &Path,
    sandbox: Sandbox,
    command: Option<&[OsString]>,
    needs: &mut Needs,
) -> Result<(), Error> {
    if sandbox == Sandbox::Off || has_helper(path) {
        return Ok(());
    }
    let Some([program, arguments @ ..]) = command else {
        let path = path.display();
        return Err(Error::Config(format!(
            "{path}: a port that connects to a socket needs a connector in the sandbox; set Config::connector, or use Sandbox::Off"
        )));
    };
    let failed = |source| Error::os(format!("a process that connects to {}", path.display()), source);
    let (own, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed(errno.into()))?;
    let mut command = Command::new(program);
    // A process group of its own keeps Ctrl-C away from the connector.
    command.args(arguments).arg(without_links(path)).process_group(0).stdin(Stdio::from(other)).stdout(Stdio::null());
    // The child is not waited for: it ends after this process, and init reaps it.
    let child = command.spawn().map_err(failed)?;
    // The connector must hold the only copy of this end, so that the connection closes when the connector ends.
    drop(command);
    register_connect_helper(path, own)?;
    needs.connectors.push(format!(
        "process {} keeps its user and CAP_DAC_OVERRIDE, to connect to {} alone",
        child.id(),
        path.display()
    ));
    Ok(())
}

/// Resolves symbolic links in the path, as far as it exists.
fn without_links(path: &Path) -> PathBuf {
    let parent = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(parent).unwrap_or_else(|| path.into())
}

/// Connects to the socket at `path` whenever the process at standard input asks for it, in a sandbox of its own, until that
/// process ends. For the command line in [`Config::connector`](crate::Config::connector).
///
/// # Errors
/// If standard input is not a socket, or the sandbox cannot be entered.
pub fn run(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::os("standard input", source);
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let enter = || -> Result<(), String> {
        privileges::keep_for_connecting()?;
        files::deny_all()?;
        syscalls::restrict(Sandbox::Connector, false).map(drop)
    };
    enter().map_err(|why| Error::Permission(format!("sandbox: {why}; to run without one: --no-sandbox")))?;
    run_connect_helper(socket, path);
    Ok(())
}
