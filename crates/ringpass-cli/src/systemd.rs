//! What systemd gives a service, and what it is told by one: listening sockets (sd_listen_fds(3)); readiness, the end, and signs of
//! life for its watchdog (sd_notify(3)). Other service managers that use these protocols are served as well.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use listenfd::ListenFd;
use ringpass::{Error, Workers};
use ringpass_ipc::inherited;

/// The service manager that started this program and wants to hear of it.
static MANAGER: OnceLock<Manager> = OnceLock::new();

struct Manager {
    /// Connected before the sandbox is entered, and does not block.
    socket: UnixDatagram,
    watchdog: Option<Watchdog>,
}

/// Ends the program if it has shown no sign of life for some time.
struct Watchdog {
    /// Half of that time.
    interval: Duration,
    seen: Mutex<Seen>,
}

/// What was seen at the last sign of life.
struct Seen {
    at: Instant,
    /// Rounds of each worker.
    rounds: Vec<Option<u64>>,
}

/// Takes the sockets that this program was started with, and finds out who wants to hear of it. To be called before anything listens and
/// before the sandbox is entered.
///
/// # Errors
/// A socket that nothing here can listen on; a manager that cannot be told.
pub fn start() -> Result<(), Error> {
    let mut sockets = ListenFd::from_env();
    for number in 0..sockets.len() {
        let failed = |error: io::Error| Error::os(format!("socket {number} of LISTEN_FDS"), error);
        let socket = match sockets.take_unix_listener(number) {
            Ok(unix) => unix.map(Into::into),
            Err(_) => sockets.take_tcp_listener(number).map_err(failed)?.map(Into::into),
        };
        socket.map_or(Ok(()), |socket| inherited::keep(socket).map_err(failed))?;
    }
    let Ok(place) = std::env::var("NOTIFY_SOCKET") else { return Ok(()) };
    let failed = |error: io::Error| Error::os(format!("telling the service manager at {place}"), error);
    let address = match place.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&place),
    };
    let socket = UnixDatagram::unbound().map_err(failed)?;
    address.and_then(|address| socket.connect_addr(&address)).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let is_own = std::env::var("WATCHDOG_PID").map_or(true, |id| id == std::process::id().to_string());
    let limit = std::env::var("WATCHDOG_USEC").ok().and_then(|limit| limit.parse().ok()).filter(|_| is_own);
    let watchdog = limit.map(|limit| Watchdog {
        interval: Duration::from_micros(limit) / 2,
        seen: Mutex::new(Seen { at: Instant::now(), rounds: Vec::new() }),
    });
    let _ = MANAGER.set(Manager { socket, watchdog });
    Ok(())
}

/// Tells the manager that the program does its work from now on.
pub fn ready() {
    tell("READY=1");
    for socket in inherited::rest() {
        tracing::warn!("{socket} was passed by the service manager, and nothing listens there");
    }
}

/// Tells the manager that the program comes to its end.
pub fn stopping() {
    tell("STOPPING=1");
}

/// Tells the manager's watchdog that the program lives, if each of its workers has ended a round since the last time. A worker that has nothing to
/// do ends several a second; one that has ended does not count.
pub fn show_life(workers: Option<&Workers>) {
    let Some(Manager { watchdog: Some(watchdog), .. }) = MANAGER.get() else { return };
    let mut seen = watchdog.seen.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.at.elapsed() < watchdog.interval {
        return;
    }
    let rounds = workers.map(Workers::rounds).unwrap_or_default();
    let stand_still = |(now, before): (&Option<u64>, &Option<u64>)| now.is_some() && now == before;
    if !rounds.iter().zip(&seen.rounds).any(stand_still) {
        *seen = Seen { at: Instant::now(), rounds };
        tell("WATCHDOG=1");
    }
}

fn tell(what: &str) {
    if let Some(manager) = MANAGER.get() {
        // A manager that is gone or busy is no reason to end.
        let _ = manager.socket.send(what.as_bytes());
    }
}
