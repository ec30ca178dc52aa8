//! A back-end's control thread: one front-end after the other, at a socket of its own or at theirs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpass_peer::{Connecting, Error, Listener, Waiting, connect, prepare_signals};
use ringpass_port::Role;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::{Device, Ended, Session};

/// Where front-ends are met.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// The socket.
    pub path: PathBuf,
    /// Who makes it.
    pub role: Role,
}

/// A back-end that is served. Dropped, it ends: the device is disconnected, and the thread is gone.
pub struct Control {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Serves a device, on a thread of its own, to one front-end at a time. A socket of ours is there when this returns; one
/// of theirs is tried again and again.
pub fn serve(endpoint: Endpoint, device: Box<dyn Device>) -> Result<Control, Error> {
    Server::open(endpoint, device)?.start()
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_owned();
    move |source| Error::Os { what, source }
}

impl Server {
    /// Makes what a thread needs that may do nothing but serve: the socket, if it is ours.
    pub fn open(endpoint: Endpoint, device: Box<dyn Device>) -> Result<Self, Error> {
        prepare_signals().map_err(failed("interrupting guests"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|errno| failed("an eventfd")(errno.into()))?);
        let door = match endpoint.role {
            Role::Listen => Door::Listening(Listener::bind(&endpoint.path)?),
            Role::Connect => Door::Connecting(Attempts::default()),
        };
        Ok(Self { endpoint, door, device, stop, session: None, log: LogLimit::default() })
    }

    /// Serves from now on, on a thread of its own.
    ///
    /// Under a sandbox, the thread makes these system calls: ppoll, read, recvmsg, sendmsg, fstat, fstatfs, mmap, munmap,
    /// memfd_create, ftruncate, fcntl (F_ADD_SEALS, F_GET_SEALS), io_submit, io_getevents, close; listening, accept4 and
    /// eventfd2; connecting, socket and connect, unless a helper connects for this process
    /// ([`ringpass_peer::connect_through`]).
    pub fn start(self) -> Result<Control, Error> {
        let stop = self.stop.clone();
        let thread = std::thread::Builder::new().name("vhost-user".into()).spawn(|| self.run());
        Ok(Control { stop, thread: Some(thread.map_err(failed("the thread of a vhost-user back-end"))?) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Its counter is far from its maximum: nobody else has it.
        #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// How front-ends come.
enum Door {
    Listening(Listener),
    Connecting(Attempts),
}

/// Attempts to connect: when the next one is due, and how long after it another.
struct Attempts {
    next: Instant,
    pause: Duration,
    /// Whether it was said that nobody is there.
    reported: bool,
}

impl Attempts {
    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);
}

impl Default for Attempts {
    fn default() -> Self {
        Self { next: Instant::now(), pause: Self::FIRST_PAUSE, reported: false }
    }
}

/// A back-end that is to be served.
pub struct Server {
    endpoint: Endpoint,
    door: Door,
    device: Box<dyn Device>,
    stop: Arc<OwnedFd>,
    session: Option<Session>,
    log: LogLimit,
}

impl Server {
    /// How often the guest is looked after, and the front-end's patience.
    const LOOK: Duration = Duration::from_millis(100);

    fn run(mut self) {
        loop {
            let mut stop = [0; 8];
            #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
            if rustix::io::read(&self.stop, &mut stop).is_ok() {
                return self.end(&Ended::Stopping);
            }
            self.welcome();
            self.serve();
            self.wait();
        }
    }

    /// Lets the next front-end in, if there is none; turns others away.
    fn welcome(&mut self) {
        let socket = match &mut self.door {
            Door::Listening(listener) => listener.accept(|_, error| {
                let path = listener.path().display();
                self.log.say(|| tracing::warn!("{path}: a front-end was turned away: {error}"));
            }),
            Door::Connecting(_) if self.session.is_some() => None,
            Door::Connecting(attempts) => attempt(attempts, &self.endpoint),
        };
        let Some(socket) = socket else { return };
        let path = self.endpoint.path.display();
        if self.session.is_some() {
            return self.log.say(|| tracing::warn!("{path}: another front-end was turned away; there is one already"));
        }
        self.log.say(|| tracing::info!("{path}: a front-end has connected"));
        self.session = Some(Session::new(socket, &*self.device));
    }

    /// Handles messages.
    fn serve(&mut self) {
        let Some(session) = &mut self.session else { return };
        let result = session.handle(&mut *self.device);
        if let Some(refusal) = session.take_refusal() {
            let path = self.endpoint.path.display();
            self.log.say(|| tracing::warn!("{path}: {refusal}, was refused"));
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
        self.log.say(|| match why {
            Ended::Closed | Ended::Stopping => tracing::info!("{path}: the session has ended: {why}"),
            _ => tracing::warn!("{path}: the session has ended: {why}"),
        });
        if let Door::Connecting(attempts) = &mut self.door {
            *attempts = Attempts { next: Instant::now() + Attempts::FIRST_PAUSE, ..Attempts::default() };
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let mut fds: Vec<(BorrowedFd<'_>, PollFlags)> = vec![(self.stop.as_fd(), PollFlags::IN)];
        let mut limit = None;
        match &self.door {
            Door::Listening(listener) => match listener.wait_on() {
                Waiting::Readable(fd) => fds.push((fd, PollFlags::IN)),
                Waiting::Pause(left) => limit = Some(left),
            },
            Door::Connecting(attempts) => limit = Some(attempts.next.saturating_duration_since(Instant::now())),
        }
        if let Some(session) = &self.session {
            fds.push(session.wait_on());
            limit = Some(Self::LOOK);
        }
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // Interrupted or not, what there is to do is looked for.
        let _ = poll(&mut fds, limit.as_ref());
    }
}

/// Tries to connect, if it is time. Says once that nobody is there.
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
    attempts.next = Instant::now() + attempts.pause;
    attempts.pause = (2 * attempts.pause).min(Attempts::LONGEST_PAUSE);
    None
}

/// A front-end that comes and goes as fast as it can shall not fill the log.
struct LogLimit {
    second: Instant,
    lines: u32,
    unsaid: u32,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { second: Instant::now(), lines: 0, unsaid: 0 }
    }
}

impl LogLimit {
    /// Lines in a second.
    const MOST: u32 = 10;

    fn say(&mut self, line: impl FnOnce()) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            if self.unsaid > 0 {
                tracing::warn!("{} lines like the last ones were left out", self.unsaid);
            }
            *self = Self::default();
        }
        self.lines += 1;
        if self.lines <= Self::MOST { line() } else { self.unsaid += 1 }
    }
}
