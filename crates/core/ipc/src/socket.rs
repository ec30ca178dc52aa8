//! Unix sockets by their paths: connecting, and what may be wrong.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Errors of listening and connecting.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens at this path.
    #[error("{0} is served by another process; end that one, or take another path")]
    InUse(PathBuf),
    /// The socket belongs to another user, and this process cannot find out whether it is served.
    #[error(
        "{path} belongs to user {owner}, and permission to connect to it or to remove it was denied; if nobody serves it, remove it as that user or root; else take another path"
    )]
    Denied {
        /// Path of the socket.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
    },
    /// Something other than a socket exists at this path.
    #[error("{0} exists and is not a socket; take another path")]
    NoSocket(PathBuf),
    /// The lock that keeps two servers from starting at the same path could not be taken.
    #[error("{path}: {why}; remove it if no server is starting, or take another path")]
    Locked {
        /// Path of the lock file.
        path: PathBuf,
        /// Reason: who holds the lock, or who owns the file.
        why: String,
    },
    /// The folder of the path does not exist.
    #[error("{path}: there is no folder {folder}; create it, or take another path")]
    NoFolder {
        /// Path of the socket.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// The operation that failed.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Result of an attempt to connect.
#[derive(Debug)]
pub enum Connecting {
    /// Connected; the socket is non-blocking.
    Connected(OwnedFd),
    /// The listener's queue is full. A later attempt may succeed.
    Queued,
    /// The connection was refused, usually because no process listens there.
    Refused(Errno),
}

pub(crate) fn address(path: &Path) -> Result<SocketAddrUnix, Error> {
    let what = || format!("{}: a path for a socket has at most 107 bytes", path.display());
    SocketAddrUnix::new(path).map_err(|errno| Error::Os { what: what(), source: errno.into() })
}

pub(crate) fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Connects to a listening peer without blocking, by this process itself.
pub(crate) fn connect_directly(path: &Path) -> Result<Connecting, Error> {
    let failed = |errno: Errno| Error::Os { what: "a unix socket".into(), source: errno.into() };
    let address = address(path)?;
    let socket = socket().map_err(failed)?;
    Ok(match rustix::net::connect(&socket, &address) {
        Ok(()) => Connecting::Connected(socket),
        Err(Errno::AGAIN | Errno::INTR) => Connecting::Queued,
        Err(errno) => Connecting::Refused(errno),
    })
}
