//! Connections that a helper process makes, for a process whose sandbox lets it make none.
//!
//! The process asks with a byte, its number; the helper answers with that number, an errno (0 if it has connected) and then
//! the connected socket. Nothing else can be asked for, so the helper reaches the one socket that it was started for.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::listener::connect_directly;
use crate::{Arrived, Connecting, Error, Lost, Stream};

/// Helpers of this process: a sandbox is the whole process's, and so are they.
static HELPERS: Mutex<Vec<Helper>> = Mutex::new(Vec::new());

/// How long a helper, which never waits for anything but requests, may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of an answer.
const ANSWER: usize = 5;

struct Helper {
    path: PathBuf,
    stream: Stream,
    /// Of the last request.
    number: u8,
}

/// From now on [`connect`](crate::connect) to this path asks the helper at the other end of `socket`, where
/// [`serve_connects`] runs. Returns once the helper has said that it is there.
pub fn connect_through(path: &Path, socket: OwnedFd) -> Result<(), Error> {
    let mut helper = Helper { path: path.into(), stream: Stream::to_helper(socket, 64), number: 0 };
    helper.answer()?;
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner).push(helper);
    Ok(())
}

/// Whether connections to this path are made by a helper.
pub fn has_helper(path: &Path) -> bool {
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|helper| helper.path == path)
}

/// Connects by the helper for this path, if there is one.
pub(crate) fn connect_by_helper(path: &Path) -> Option<Result<Connecting, Error>> {
    let mut helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    helpers.iter_mut().find(|helper| helper.path == path).map(Helper::connect)
}

impl Helper {
    fn connect(&mut self) -> Result<Connecting, Error> {
        self.number = self.number.wrapping_add(1);
        if self.stream.blocked() {
            // It has not even read earlier requests.
            return Err(self.lost("does not answer"));
        }
        self.stream.send(vec![self.number], Vec::new()).map_err(|lost| self.lost(&lost.to_string()))?;
        self.answer()
    }

    /// Waits for the answer to the last request. Answers that came too late for earlier ones are skipped.
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
            if self.stream.receive().map_err(|lost| self.lost(&lost.to_string()))? == Arrived::Nothing {
                let left = PATIENCE.checked_sub(start.elapsed()).ok_or_else(|| self.lost("does not answer"))?;
                let left = Timespec::try_from(left).expect("a short time");
                // Interrupted or not, what has come is looked for.
                let _ = poll(&mut [PollFd::from_borrowed_fd(self.stream.socket(), PollFlags::IN)], Some(&left));
            }
        }
    }

    fn lost(&self, why: &str) -> Error {
        let what = format!("{}: the process that connects to it", self.path.display());
        Error::Os { what, source: io::Error::other(why.to_owned()) }
    }
}

/// Answers requests of the process at the other end of `socket` until it is gone: connects to the socket at `path`, and
/// to nothing else. No component of the path may be a symbolic link, which its folder's owner could turn to another socket.
pub fn serve_connects(socket: OwnedFd, path: &Path) -> Lost {
    let mut stream = Stream::new(socket, 64);
    let mut serve = || -> Result<(), Lost> {
        stream.send(vec![0; ANSWER], Vec::new())?;
        loop {
            if let Some(&number) = stream.arrived().first() {
                stream.take(1);
                let (errno, socket) = match connect_without_links(path) {
                    Ok(Connecting::Connected(socket)) => (0, Some(socket)),
                    Ok(Connecting::Queued) => (0, None),
                    Ok(Connecting::Refused(errno)) => (errno.raw_os_error(), None),
                    Err(_) => (Errno::INVAL.raw_os_error(), None),
                };
                let answer = [&[number][..], &errno.to_le_bytes()].concat();
                stream.send(answer, socket.into_iter().collect())?;
            }
            while stream.blocked() || stream.arrived().is_empty() && stream.receive()? == Arrived::Nothing {
                let flags = if stream.blocked() { PollFlags::OUT } else { PollFlags::IN };
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

/// Connects to a socket that is found without following symbolic links. It is opened as a place first, so that what was
/// found is what is connected to.
fn connect_without_links(path: &Path) -> Result<Connecting, Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Ok(place) => connect_directly(Path::new(&format!("/proc/self/fd/{}", place.as_raw_fd()))),
        Err(errno) => Ok(Connecting::Refused(errno)),
    }
}
