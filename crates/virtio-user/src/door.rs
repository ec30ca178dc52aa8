//! Where back-ends come from.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringpass_peer::{Connecting, Listener, Waiting, connect};
use ringpass_port::{Error, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long a first back-end may take to come, or to let in the many that wait before us.
const FIRST: Duration = Duration::from_secs(10);

/// This end's part in meeting the other.
pub(crate) enum Door {
    /// Back-ends come to this socket.
    Listen(Listener),
    /// The back-end listens here.
    Connect(PathBuf),
}

/// Why there is no back-end now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Nobody {
    /// None listens.
    #[error("does a back-end listen there? {0}")]
    Absent(Errno),
    /// It is not that.
    #[error("{0}")]
    Failed(String),
}

impl Door {
    pub(crate) fn open(path: &Path, role: Role) -> Result<Self, Error> {
        Ok(match role {
            Role::Listen => Self::Listen(Listener::bind(path).map_err(other)?),
            Role::Connect => Self::Connect(path.into()),
        })
    }

    /// Whether back-ends come to this end.
    pub(crate) fn listens(&self) -> bool {
        matches!(self, Self::Listen(_))
    }

    /// What becomes readable when a back-end has come, and how long to wait for it at most. Neither, if it is to be gone to.
    pub(crate) fn wait_on(&self) -> (Option<BorrowedFd<'_>>, Option<Duration>) {
        match self {
            Self::Listen(listener) => match listener.wait_on() {
                Waiting::Readable(fd) => (Some(fd), None),
                Waiting::Pause(left) => (None, Some(left)),
            },
            Self::Connect(_) => (None, None),
        }
    }

    /// A back-end, if there is one now.
    pub(crate) fn try_meet(&self) -> Result<Option<OwnedFd>, Nobody> {
        match self {
            Self::Listen(listener) => Ok(listener.accept(|_, error| {
                tracing::warn!("{}: a back-end was turned away: {error}", listener.path().display());
            })),
            Self::Connect(path) => match connect(path).map_err(|error| Nobody::Failed(error.to_string()))? {
                Connecting::Connected(socket) => Ok(Some(socket)),
                Connecting::Queued => Ok(None),
                Connecting::Refused(errno @ (Errno::NOENT | Errno::CONNREFUSED)) => Err(Nobody::Absent(errno)),
                Connecting::Refused(Errno::ACCESS) => Err(Nobody::Failed(format!(
                    "{} may not be connected to by this user; open that socket to it, or let this end be the server",
                    path.display()
                ))),
                Connecting::Refused(errno) => Err(Nobody::Failed(format!("{}: {errno}", path.display()))),
            },
        }
    }

    /// The first back-end.
    pub(crate) fn meet(&self) -> Result<OwnedFd, Error> {
        let start = Instant::now();
        while start.elapsed() < FIRST {
            match (self.try_meet(), self) {
                (Ok(Some(socket)), _) => return Ok(socket),
                (Ok(None), Self::Listen(_)) => wait(self.wait_on()),
                (Ok(None), Self::Connect(_)) => std::thread::sleep(Duration::from_millis(1)),
                (Err(nobody), _) => return Err(other(nobody)),
            }
        }
        let what = match self {
            Self::Listen(listener) => format!("no back-end has connected to {}", listener.path().display()),
            Self::Connect(path) => format!("the back-end at {} lets nobody in", path.display()),
        };
        Err(Error::Other(format!("{what} within {} s; start it first, or sooner", FIRST.as_secs())))
    }
}

fn wait((descriptor, limit): (Option<BorrowedFd<'_>>, Option<Duration>)) {
    let limit = Timespec::try_from(limit.unwrap_or(Duration::from_millis(100))).expect("a short time");
    let mut fds: Vec<_> = descriptor.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // An interruption is as good as a time that is over.
    let _ = poll(&mut fds, Some(&limit));
}

fn other(error: impl std::fmt::Display) -> Error {
    Error::Other(error.to_string())
}
