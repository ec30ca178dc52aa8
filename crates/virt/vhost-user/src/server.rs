//! A back-end's control thread, which serves one front-end after the other at a socket that it listens on or
//! connects to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpass_ipc::{
    AcceptWait, Connecting, ConnectionLost, Error, Listener, SLOW_PEER_PAUSE, SocketAccess, connect, prepare_notifiers,
};
use ringpass_port::Role;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::{Device, Ended, Session};

/// The socket at which front-ends are served.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Path of the socket.
    pub path: PathBuf,
    /// Whether the back-end listens on the socket or connects to it.
    pub role: Role,
    /// Mode and owners of the socket, if the back-end listens on it.
    pub access: SocketAccess,
}

/// Handle of a running back-end. Dropping it disconnects the device and waits for the thread to end.
pub struct ServerHandle {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Serves a device to one front-end at a time, on a thread of its own.
///
/// With [`Role::Listen`] the socket exists when this returns. With [`Role::Connect`] connecting is retried
/// until a front-end is there.
pub fn serve(endpoint: Endpoint, device: Box<dyn Device>) -> Result<ServerHandle, Error> {
    Server::open(endpoint, device)?.start()
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_owned();
    move |source| Error::Os { what, source }
}

impl Server {
    /// Prepares everything that the thread needs under a sandbox, including the socket if the back-end
    /// listens.
    pub fn open(endpoint: Endpoint, device: Box<dyn Device>) -> Result<Self, Error> {
        let source = match endpoint.role {
            Role::Listen => ConnectionSource::Listening(Listener::bind_for(&endpoint.path, &endpoint.access)?),
            Role::Connect => ConnectionSource::Connecting(Attempts::default()),
        };
        Self::new(endpoint, source, device)
    }

    /// Serves a device at a socket that listens already. In a sandbox, [`prepare_notifiers`] was called before that was entered.
    pub fn of_listener(listener: Listener, device: Box<dyn Device>) -> Result<Self, Error> {
        let endpoint = Endpoint { path: listener.path().into(), role: Role::Listen, access: SocketAccess::default() };
        Self::new(endpoint, ConnectionSource::Listening(listener), device)
    }

    fn new(endpoint: Endpoint, source: ConnectionSource, device: Box<dyn Device>) -> Result<Self, Error> {
        prepare_notifiers().map_err(failed("interrupting guests"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|errno| failed("an eventfd")(errno.into()))?);
        Ok(Self { endpoint, source, device, stop, session: None, log: LogRateLimit::default() })
    }

    /// Starts to serve, on a thread of its own.
    ///
    /// Under a sandbox, the thread makes these system calls: ppoll, read, recvmsg, sendmsg, fstat, fstatfs, mmap,
    /// munmap, memfd_create, ftruncate, fcntl (F_ADD_SEALS, F_GET_SEALS), io_submit, io_getevents and close; when
    /// listening also accept4 and eventfd2; when connecting also socket and connect, unless a helper connects for
    /// this process ([`ringpass_ipc::register_connect_helper`]).
    pub fn start(self) -> Result<ServerHandle, Error> {
        let stop = self.stop.clone();
        let thread = std::thread::Builder::new().name("vhost-user".into()).spawn(|| self.run());
        Ok(ServerHandle { stop, thread: Some(thread.map_err(failed("the thread of a vhost-user back-end"))?) })
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        // Only this process has the eventfd, so its counter is far below the maximum and the write does not
        // block.
        #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// How connections to front-ends are made.
enum ConnectionSource {
    Listening(Listener),
    Connecting(Attempts),
}

/// Connection attempts: the time of the next one and the interval after it.
struct Attempts {
    next: Instant,
    backoff: Duration,
    /// Whether the absence of a front-end has been logged.
    reported: bool,
}

impl Attempts {
    const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
    const MAX_BACKOFF: Duration = Duration::from_secs(1);
}

impl Default for Attempts {
    fn default() -> Self {
        Self { next: Instant::now(), backoff: Self::INITIAL_BACKOFF, reported: false }
    }
}

/// A back-end that is ready to be served.
pub struct Server {
    endpoint: Endpoint,
    source: ConnectionSource,
    device: Box<dyn Device>,
    stop: Arc<OwnedFd>,
    session: Option<Session>,
    log: LogRateLimit,
}

impl Server {
    /// Interval at which faults of the guest and timeouts of the front-end are checked.
    const POLL_INTERVAL: Duration = Duration::from_millis(100);

    fn run(mut self) {
        loop {
            let mut stop = [0; 8];
            #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
            if rustix::io::read(&self.stop, &mut stop).is_ok() {
                return self.end(&Ended::Stopping);
            }
            self.accept_client();
            self.serve();
            self.wait();
        }
    }

    /// Accepts the next front-end if there is no session, and turns others away.
    fn accept_client(&mut self) {
        let socket = match &mut self.source {
            ConnectionSource::Listening(listener) => listener.accept(|_, error| {
                let path = listener.path().display();
                self.log.emit(|| tracing::warn!("{path}: a front-end was turned away: {error}"));
            }),
            ConnectionSource::Connecting(_) if self.session.is_some() => None,
            ConnectionSource::Connecting(attempts) => attempt(attempts, &self.endpoint),
        };
        let Some(socket) = socket else { return };
        let path = self.endpoint.path.display();
        if self.session.is_some() {
            return self.log.emit(|| tracing::warn!("{path}: another front-end was turned away; there is one already"));
        }
        self.log.emit(|| tracing::info!("{path}: a front-end has connected"));
        self.session = Some(Session::new(socket, &*self.device));
    }

    /// Handles messages of the current session.
    fn serve(&mut self) {
        let Some(session) = &mut self.session else { return };
        let result = session.handle(&mut *self.device);
        if let Some(refusal) = session.take_refusal() {
            let path = self.endpoint.path.display();
            self.log.emit(|| tracing::warn!("{path}: {refusal}, was refused"));
        }
        if let Err(ended) = result {
            self.end(&ended);
        }
    }

    /// Ends the session, if there is one.
    fn end(&mut self, why: &Ended) {
        let Some(session) = self.session.take() else { return };
        session.end(why, &mut *self.device);
        let path = self.endpoint.path.display();
        self.log.emit(|| match why {
            Ended::Lost(ConnectionLost::Closed) | Ended::Stopping => {
                tracing::info!("{path}: the session has ended: {why}")
            }
            _ => tracing::warn!("{path}: the session has ended: {why}"),
        });
        let slow = matches!(why, Ended::SlowEventfd | Ended::SlowMemory(_));
        match &mut self.source {
            ConnectionSource::Connecting(attempts) => {
                let pause = if slow { SLOW_PEER_PAUSE } else { Attempts::INITIAL_BACKOFF };
                *attempts = Attempts { next: Instant::now() + pause, ..Attempts::default() };
            }
            ConnectionSource::Listening(listener) if slow => listener.pause(SLOW_PEER_PAUSE),
            ConnectionSource::Listening(_) => {}
        }
    }

    /// Blocks until there is work or a timeout passes.
    fn wait(&self) {
        let mut fds: Vec<(BorrowedFd<'_>, PollFlags)> = vec![(self.stop.as_fd(), PollFlags::IN)];
        let mut limit = None;
        match &self.source {
            ConnectionSource::Listening(listener) => match listener.wait_on() {
                AcceptWait::Readable(fd) => fds.push((fd, PollFlags::IN)),
                AcceptWait::Pause(left) => limit = Some(left),
            },
            ConnectionSource::Connecting(attempts) => {
                limit = Some(attempts.next.saturating_duration_since(Instant::now()))
            }
        }
        if let Some(session) = &self.session {
            fds.push(session.wait_on());
            limit = Some(Self::POLL_INTERVAL);
        }
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // An interrupted wait needs no handling: the caller checks everything again.
        let _ = poll(&mut fds, limit.as_ref());
    }
}

/// Tries to connect if the next attempt is due. Logs once that no front-end is there.
fn attempt(attempts: &mut Attempts, endpoint: &Endpoint) -> Option<OwnedFd> {
    if Instant::now() < attempts.next {
        return None;
    }
    let refused = match connect(&endpoint.path) {
        Ok(Connecting::Connected(socket)) => return Some(socket),
        Ok(Connecting::Queued) => "too many wait there already".to_owned(),
        Ok(Connecting::Refused(errno)) => errno.to_string(),
        Err(error) => error.to_string(),
    };
    if !std::mem::replace(&mut attempts.reported, true) {
        let path = endpoint.path.display();
        tracing::info!("{path}: no front-end there yet ({refused}); it is tried again until there is one");
    }
    attempts.next = Instant::now() + attempts.backoff;
    attempts.backoff = (2 * attempts.backoff).min(Attempts::MAX_BACKOFF);
    None
}

/// Limits the log lines caused by a front-end that connects and disconnects as fast as it can.
struct LogRateLimit {
    second: Instant,
    lines: u32,
    suppressed: u32,
}

impl Default for LogRateLimit {
    fn default() -> Self {
        Self { second: Instant::now(), lines: 0, suppressed: 0 }
    }
}

impl LogRateLimit {
    /// Largest number of lines per second.
    const MAX_LINES: u32 = 10;

    fn emit(&mut self, line: impl FnOnce()) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            if self.suppressed > 0 {
                tracing::warn!("{} lines like the last ones were left out", self.suppressed);
            }
            *self = Self::default();
        }
        self.lines += 1;
        if self.lines <= Self::MAX_LINES { line() } else { self.suppressed += 1 }
    }
}
