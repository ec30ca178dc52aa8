//! Other processes of this program.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

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

/// Starts a subcommand of this program in another process, whose standard input is a unix socket. Returns the other end, which does not block; the process
/// learns by its end that this one has ended, and init reaps it then.
///
/// # Errors
/// The process cannot be started.
pub fn start<A: AsRef<OsStr>>(
    subcommand: &str,
    arguments: impl IntoIterator<Item = A>,
    output: Stdio,
) -> io::Result<UnixStream> {
    let command = own_command(subcommand);
    let [program, own @ ..] = command.as_deref().unwrap_or_default() else {
        return Err(ErrorKind::NotFound.into());
    };
    let (stream, other) = UnixStream::pair()?;
    stream.set_nonblocking(true)?;
    let mut process = Command::new(program);
    // A process group of its own keeps Ctrl-C away from it: this process says when it ends.
    process.args(own).args(arguments).process_group(0);
    // A service manager waits for word of this process alone.
    process.env_remove("NOTIFY_SOCKET");
    // The only copy of the other end is the process's: it closes with this command.
    process.stdin(OwnedFd::from(other)).stdout(output).spawn()?;
    Ok(stream)
}
