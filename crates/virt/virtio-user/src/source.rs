//! Connections to back-ends, accepted or initiated.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringpass_ipc::{AcceptWait, Connecting, Listener, check_interrupt, connect};
use ringpass_port::{Error, Role, VirtioUserConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long to wait for the first back-end: until it connects, or until it accepts after others in its queue.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Role of the front-end in making connections.
pub(crate) enum ConnectionSource {
    /// Back-ends connect to this socket.
    Listen(Listener),
    /// The back-end listens at this path.
    Connect(PathBuf),
}

/// Why there is no back-end at the moment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoBackend {
    /// No back-end is listening.
    #[error("does a back-end listen there? {0}")]
    Absent(Errno),
    /// This user may not connect.
    #[error("{} may not be connected to by this user; open that socket to it, or let this end be the server", .0.display())]
    Denied(PathBuf),
    /// Connecting failed for another reason.
    #[error("{0}")]
    Failed(String),
}

impl From<NoBackend> for Error {
    fn from(error: NoBackend) -> Self {
        let why = error.to_string();
        match error {
            NoBackend::Absent(_) => Self::NotFound(why),
            NoBackend::Denied(_) => Self::Permission(why),
            NoBackend::Failed(_) => Self::Gone(why),
        }
    }
}

impl ConnectionSource {
    pub(crate) fn open(config: &VirtioUserConfig) -> Result<Self, Error> {
        Ok(match config.role {
            Role::Listen => Self::Listen(Listener::bind_for(&config.path, &config.access)?),
            Role::Connect => Self::Connect(config.path.clone()),
        })
    }

    /// Returns whether the front-end is the one that listens.
    pub(crate) fn listens(&self) -> bool {
        matches!(self, Self::Listen(_))
    }

    /// Returns the descriptor that becomes readable when a back-end connects, and the longest time to wait. Both
    /// are `None` if the front-end connects.
    pub(crate) fn wait_on(&self) -> (Option<BorrowedFd<'_>>, Option<Duration>) {
        match self {
            Self::Listen(listener) => match listener.wait_on() {
                AcceptWait::Readable(fd) => (Some(fd), None),
                AcceptWait::Pause(left) => (None, Some(left)),
            },
            Self::Connect(_) => (None, None),
        }
    }

    /// Accepts or connects to a back-end, without waiting.
    pub(crate) fn try_connect(&self) -> Result<Option<OwnedFd>, NoBackend> {
        match self {
            Self::Listen(listener) => Ok(listener.accept(|_, error| {
                tracing::warn!("{}: a back-end was turned away: {error}", listener.path().display());
            })),
            Self::Connect(path) => match connect(path).map_err(|error| NoBackend::Failed(error.to_string()))? {
                Connecting::Connected(socket) => Ok(Some(socket)),
                Connecting::Queued => Ok(None),
                Connecting::Refused(errno @ (Errno::NOENT | Errno::CONNREFUSED)) => Err(NoBackend::Absent(errno)),
                Connecting::Refused(Errno::ACCESS) => Err(NoBackend::Denied(path.clone())),
                Connecting::Refused(errno) => Err(NoBackend::Failed(format!("{}: {errno}", path.display()))),
            },
        }
    }

    /// Accepts or connects to the first back-end, waiting up to [`CONNECT_TIMEOUT`].
    pub(crate) fn wait_connect(&self) -> Result<OwnedFd, Error> {
        let start = Instant::now();
        while start.elapsed() < CONNECT_TIMEOUT {
            check_interrupt().map_err(|source| Error::os("waiting for a back-end", source))?;
            match (self.try_connect(), self) {
                (Ok(Some(socket)), _) => return Ok(socket),
                (Ok(None), Self::Listen(_)) => wait(self.wait_on()),
                (Ok(None), Self::Connect(_)) => std::thread::sleep(Duration::from_millis(1)),
                (Err(nobody), _) => return Err(nobody.into()),
            }
        }
        let what = match self {
            Self::Listen(listener) => format!("no back-end has connected to {}", listener.path().display()),
            Self::Connect(path) => format!("the back-end at {} accepts no connection", path.display()),
        };
        Err(Error::NotFound(format!("{what} within {} s; start it first, or sooner", CONNECT_TIMEOUT.as_secs())))
    }
}

fn wait((descriptor, limit): (Option<BorrowedFd<'_>>, Option<Duration>)) {
    let limit = Timespec::try_from(limit.unwrap_or(Duration::from_millis(100))).expect("a short time");
    let mut fds: Vec<_> = descriptor.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // An interrupted wait is treated as a timeout.
    let _ = poll(&mut fds, Some(&limit));
}
