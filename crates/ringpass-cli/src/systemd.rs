//! What systemd gives a service, and what it is told by one: listening sockets (sd_listen_fds(3)); readiness, the end, signs of
//! life for its watchdog, and descriptors that it keeps for the next run of the service (sd_notify(3), sd_pid_notify_with_fds(3)). Other service managers that use these protocols are served as well.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use listenfd::ListenFd;
use ringpass::{Error, Workers};
use ringpass_ipc::{inherited, send_descriptors, stored};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// The service manager that started this program and wants to hear of it.
static MANAGER: OnceLock<Manager> = OnceLock::new();

struct Manager {
    /// Connected before the sandbox is entered, and does not block.
    socket: UnixDatagram,
    watchdog: Option<Watchdog>,
    store: Option<Store>,
}

/// Descriptors that the manager keeps for the next run.
struct Store {
    /// Largest number of them.
    most: usize,
    /// A pipe whose writing end goes to the manager, which closes it when it has done all before.
    barrier: Mutex<Option<(OwnedFd, OwnedFd)>>,
}

/// Names of stored descriptors begin with this, and no names of sockets.
const STORED: &str = "ringpass-stored-";
/// Time that a manager has to take what it is sent.
const MANAGER_TIME: Duration = Duration::from_secs(5);

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
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut sockets = ListenFd::from_env();
    for number in 0..sockets.len() {
        let failed = |error: io::Error| Error::os(format!("descriptor {number} of LISTEN_FDS"), error);
        if let Some(name) = names.split(':').nth(number).and_then(|name| name.strip_prefix(STORED)) {
            let number = sockets.take_raw_fd(number).map_err(failed)?.expect("not taken before");
            stored::keep(name, number).map_err(failed)?;
            continue;
        }
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
    let most = std::env::var("FDSTORE").ok().and_then(|most| most.parse().ok()).filter(|&most| most > 0);
    let pipe = most.map(|_| pipe_with(PipeFlags::CLOEXEC)).transpose().map_err(|errno| failed(errno.into()))?;
    let store = most.map(|most| Store { most, barrier: Mutex::new(pipe) });
    let _ = MANAGER.set(Manager { socket, watchdog, store });
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

/// Returns whether the manager keeps descriptors for the next run of the service.
pub fn has_store() -> bool {
    MANAGER.get().is_some_and(|manager| manager.store.is_some())
}

/// Has the manager keep a descriptor, under a name that no other one has, for the next run, which gets it from [`take_stored`].
///
/// # Errors
/// The manager has no store, or one that is too small; it is gone, or does not take it within 5 s.
pub fn store(number: usize, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let Some(Manager { store: Some(Store { most, .. }), .. }) = MANAGER.get() else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    if number >= *most {
        return Err(io::Error::other(format!(
            "the service manager keeps {most} descriptors; set FileDescriptorStoreMax= higher"
        )));
    }
    // Without FDPOLL=0, one in whose eventfd a program has counted to the end would be dropped.
    send(&format!("FDSTORE=1\nFDNAME={STORED}{name}\nFDPOLL=0"), &[descriptor])
}

/// Waits until the manager has what it was told, for at most 5 s; once. It may not take it from a process that has ended.
pub fn settle() -> io::Result<()> {
    let Some(Manager { store: Some(Store { barrier, .. }), .. }) = MANAGER.get() else { return Ok(()) };
    let Some((done, pass)) = barrier.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
    send("BARRIER=1", &[pass.as_fd()])?;
    drop(pass);
    wait(PollFd::new(&done, PollFlags::empty()), Instant::now() + MANAGER_TIME)
}

/// Takes what an earlier run has had the manager keep, by name. The manager keeps it no longer.
pub fn take_stored() -> Vec<(String, OwnedFd)> {
    let stored = stored::take();
    for (name, _) in &stored {
        if let Err(error) = send(&format!("FDSTOREREMOVE=1\nFDNAME={STORED}{name}"), &[]) {
            tracing::warn!("the service manager goes on keeping what this program has taken: {error}");
            break;
        }
    }
    stored
}

/// Tells the manager something with descriptors, and waits until it takes that.
fn send(what: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let Some(Manager { socket, .. }) = MANAGER.get() else { return Err(io::ErrorKind::NotConnected.into()) };
    let until = Instant::now() + MANAGER_TIME;
    loop {
        match send_descriptors(socket, what.as_bytes(), descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(PollFd::new(socket, PollFlags::OUT), until)?
            }
            sent => return sent.map(drop),
        }
    }
}

/// Waits until something happens at a descriptor.
///
/// # Errors
/// The kernel's; that the time is over.
fn wait(descriptor: PollFd<'_>, until: Instant) -> io::Result<()> {
    let mut descriptors = [descriptor];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match poll(&mut descriptors, Some(&Timespec::try_from(left).map_err(io::Error::other)?)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the service manager does not answer")),
            Err(Errno::INTR) => {}
            done => return Ok(done.map(drop)?),
        }
    }
}

fn tell(what: &str) {
    if let Some(manager) = MANAGER.get() {
        // A manager that is gone or busy is no reason to end.
        let _ = manager.socket.send(what.as_bytes());
    }
}
