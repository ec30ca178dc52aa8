//! Starts the process that serves netmap ports when a program first needs it.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use netmap::client::{Client, Error, cookie, default_socket};
use netmap::protocol::Request;
use netmap::request::Kind;
use rustix::net::SocketAddrUnix;

/// Time until the started process listens.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to the serving process; starts it if there is none.
pub fn connect() -> Result<Client, Error> {
    connect_at(&default_socket()?, &std::env::var_os("RINGPASS_NETMAPD").unwrap_or("ringpass".into()))
}

/// Returns the cookie of a socket that is connected to the serving process; `None` for any other descriptor.
pub fn cookie_of_connection(descriptor: BorrowedFd<'_>) -> Option<u64> {
    let peer = SocketAddrUnix::try_from(rustix::net::getpeername(descriptor).ok()??).ok()?;
    let path = Path::new(OsStr::from_bytes(peer.path_bytes()?));
    // The server may have written the path in another way.
    let place = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
    let is_servers = place(path).ok()? == place(&default_socket().ok()?).ok()?;
    if is_servers { cookie(descriptor).ok() } else { None }
}

/// Waits until the serving process has seen that connections were closed.
pub fn settle() {
    let Ok(socket) = default_socket() else { return };
    if let Ok(mut client) = Client::connect(&socket) {
        // It handles closed connections before the requests of others. Nobody has this cookie.
        let _ = client.ask(&Request::adopt(0));
    }
}

fn connect_at(socket: &Path, program: &OsString) -> Result<Client, Error> {
    // Of several threads, one starts it. Other processes may do so at the same time; one of the servers gets
    // the socket.
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(client) = attempt(socket)? {
        return Ok(client);
    }
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let mut started = false;
    loop {
        if let Some(client) = attempt(socket)? {
            return Ok(client);
        }
        if !started && !launch(program, socket) {
            let why = format!(
                "nobody serves netmap ports at {}, and '{}' is not found; install it, or set RINGPASS_NETMAPD",
                socket.display(),
                program.display()
            );
            return Err(Error::Os(why));
        }
        started = true;
        if start.elapsed() > START_TIMEOUT {
            let why = format!(
                "'{0} netmapd --socket {1}' does not listen within {2} s; start it by hand to see why",
                program.display(),
                socket.display(),
                START_TIMEOUT.as_secs()
            );
            return Err(Error::Os(why));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connects, if a server accepts the connection. A server that is about to end does not count as one.
fn attempt(socket: &Path) -> Result<Option<Client>, Error> {
    let mut client = match Client::connect(socket) {
        Ok(client) => client,
        Err(Error::NoServer(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    // Queries the common memory, which always exists.
    match client.ask(&Request::new(Kind::PoolsInfoGet, "", &[])) {
        Ok(_) => Ok(Some(client)),
        Err(Error::ConnectionLost(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Starts the server as a process that is not a child of the program: it outlives the program, and is invisible
/// to a program that waits for its children. Returns whether the executable exists.
fn launch(program: &OsString, socket: &Path) -> bool {
    const SCRIPT: &str = r#"command -v "$0" >/dev/null || exit 127; "$0" netmapd --socket "$1" --until-idle &"#;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", SCRIPT]).arg(program).arg(socket).env_remove("LD_PRELOAD");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    // A program that ignores SIGCHLD gets no status. The caller then finds out by connecting.
    shell.status().map_or(true, |status| status.code() != Some(127))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said_at_once() {
        let socket = std::env::temp_dir().join(format!("ringpass-test-{}-none.sock", std::process::id()));
        let start = Instant::now();
        let error = connect_at(&socket, &"ringpass-that-is-not-there".into()).err().unwrap().to_string();
        assert!(error.contains("RINGPASS_NETMAPD") && !error.contains('\n'), "{error}");
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
