//! Connections made by a helper process on behalf of a process whose sandbox forbids `connect`.
//!
//! A request is one byte, its number. The answer is that number, an errno (0 if the helper has connected) and
//! the connected socket. Nothing else can be requested, so the helper reaches only the one socket that it was
//! started for.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::connection_lost::ConnectionLost;
use crate::interrupt::wait_ready;
use crate::socket::{Connecting, Error, connect_directly};
use crate::stream::{Descriptors, ReadStatus, Stream};

/// Helpers of this process. They are global because a sandbox applies to the whole process.
static HELPERS: Mutex<Vec<Helper>> = Mutex::new(Vec::new());

/// Time that a helper may take to answer. It waits for nothing but requests.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of an answer in bytes.
const ANSWER: usize = 5;

struct Helper {
    path: PathBuf,
    stream: Stream,
    /// Number of the last request.
    number: u8,
}

/// Makes [`connect`](crate::connect) to this path ask the helper at the other end of `socket`, where
/// [`run_connect_helper`] runs. Returns once the helper has reported that it is running.
pub fn register_connect_helper(path: &Path, socket: OwnedFd) -> Result<(), Error> {
    let mut helper = Helper { path: path.into(), stream: Stream::new(socket, 64, Descriptors::Trusted), number: 0 };
    helper.answer()?;
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner).push(helper);
    Ok(())
}

thread_local! {
    /// Connections that were made already, within [`with_connections`].
    static MADE: RefCell<Option<VecDeque<OwnedFd>>> = const { RefCell::new(None) };
}

/// Calls `open`, whose calls of [`connect`] on this thread get these connections, which another process has made, in this order; there are no others.
pub fn with_connections<R>(connections: Vec<OwnedFd>, open: impl FnOnce() -> R) -> R {
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            MADE.with_borrow_mut(|made| *made = None);
        }
    }
    MADE.with_borrow_mut(|made| *made = Some(connections.into()));
    let _ended = Ended;
    open()
}

/// Takes the next of the connections that were made already; `None` outside [`with_connections`].
fn connection_made(path: &Path) -> Option<Result<Connecting, Error>> {
    let next = MADE.with_borrow_mut(|made| made.as_mut().map(VecDeque::pop_front))?;
    let failed = |source| Error::Os { what: format!("a connection to {}", path.display()), source };
    Some(match next {
        Some(socket) => match rustix::io::ioctl_fionbio(&socket, true) {
            Ok(()) => Ok(Connecting::Connected(socket)),
            Err(errno) => Err(failed(errno.into())),
        },
        None => Err(failed(io::Error::other("no other was passed on"))),
    })
}

/// Returns whether connections to this path are made by a helper.
pub fn has_helper(path: &Path) -> bool {
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|helper| helper.path == path)
}

/// Connects to a listening peer without blocking. Takes a connection that was [made already](with_connections), or uses the helper for this path,
/// if there is one ([`register_connect_helper`]).
pub fn connect(path: &Path) -> Result<Connecting, Error> {
    if let Some(made) = connection_made(path) {
        return made;
    }
    connect_via_helper(path).unwrap_or_else(|| connect_directly(path))
}

/// Connects by way of the helper for this path; `None` if there is no such helper.
fn connect_via_helper(path: &Path) -> Option<Result<Connecting, Error>> {
    let mut helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    helpers.iter_mut().find(|helper| helper.path == path).map(Helper::connect)
}

impl Helper {
    fn connect(&mut self) -> Result<Connecting, Error> {
        self.number = self.number.wrapping_add(1);
        if self.stream.has_unsent() {
            // The helper has not even read earlier requests.
            return Err(self.lost("does not answer"));
        }
        self.stream.send(vec![self.number], Vec::new()).map_err(|lost| self.lost(&lost.to_string()))?;
        self.answer()
    }

    /// Waits for the answer to the last request. Late answers to earlier requests are skipped.
    fn answer(&mut self) -> Result<Connecting, Error> {
        let start = Instant::now();
        loop {
            if let Some(&[number, a, b, c, d]) = self.stream.arrived().first_chunk::<ANSWER>() {
                let socket = self.stream.take(ANSWER).1.pop();
                if number != self.number {
                    continue;
                }
                return match (i32::from_le_bytes([a, b, c, d]), socket) {
                    (0, Some(socket)) => Ok(Connecting::Connected(socket)),
                    (0, None) => Ok(Connecting::Queued),
                    (errno, _) => Ok(Connecting::Refused(Errno::from_raw_os_error(errno))),
                };
            }
            if self.stream.receive().map_err(|lost| self.lost(&lost.to_string()))? == ReadStatus::WouldBlock {
                let left = REPLY_TIMEOUT.checked_sub(start.elapsed()).ok_or_else(|| self.lost("does not answer"))?;
                let (fd, flags) = self.stream.wait_on();
                wait_ready(fd, flags, left).map_err(|error| self.lost(&error.to_string()))?;
            }
        }
    }

    fn lost(&self, why: &str) -> Error {
        let what = format!("{}: the process that connects to it", self.path.display());
        Error::Os { what, source: io::Error::other(why.to_owned()) }
    }
}

/// Answers requests from the process at the other end of `socket` until that process is gone. Connects to the
/// socket at `path` and to nothing else. No component of the path may be a symbolic link, because the owner of
/// its folder could point the link at another socket.
pub fn run_connect_helper(socket: OwnedFd, path: &Path) -> ConnectionLost {
    let mut stream = Stream::new(socket, 64, Descriptors::Refused);
    let mut serve = || -> Result<(), ConnectionLost> {
        stream.send(vec![0; ANSWER], Vec::new())?;
        loop {
            if let Some(&number) = stream.arrived().first() {
                stream.take(1);
                let (errno, socket) = match connect_nofollow(path) {
                    Ok(Connecting::Connected(socket)) => (0, Some(socket)),
                    Ok(Connecting::Queued) => (0, None),
                    Ok(Connecting::Refused(errno)) => (errno.raw_os_error(), None),
                    Err(_) => (Errno::INVAL.raw_os_error(), None),
                };
                let answer = [&[number][..], &errno.to_le_bytes()].concat();
                stream.send(answer, socket.into_iter().collect())?;
            }
            while stream.has_unsent() || stream.arrived().is_empty() && stream.receive()? == ReadStatus::WouldBlock {
                let flags = if stream.has_unsent() { PollFlags::OUT } else { PollFlags::IN };
                let _ = poll(&mut [PollFd::from_borrowed_fd(stream.socket(), flags)], None);
                stream.flush()?;
            }
        }
    };
    match serve() {
        Err(lost) => lost,
        Ok(()) => unreachable!("it serves until the connection is lost"),
    }
}

/// Connects to a socket without following symbolic links. The path is first opened with `O_PATH`, so that the
/// socket that was found is the one that is connected to.
fn connect_nofollow(path: &Path) -> Result<Connecting, Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Ok(place) => connect_directly(Path::new(&format!("/proc/self/fd/{}", place.as_raw_fd()))),
        Err(errno) => Ok(Connecting::Refused(errno)),
    }
}
