//! A place in the file system where peers meet.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::connector::connect_by_helper;

/// What goes wrong at the door.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens there.
    #[error("{0} is served by another process; end that one, or take another path")]
    InUse(PathBuf),
    /// There is something else.
    #[error("{0} exists and is no socket; take another path")]
    NoSocket(PathBuf),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A socket that peers connect to, removed when dropped.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket at `path`: another process may have taken the path over.
    identity: (u64, u64),
}

fn address(path: &Path) -> Result<SocketAddrUnix, Error> {
    let what = || format!("{}: a path for a socket has at most 107 bytes", path.display());
    SocketAddrUnix::new(path).map_err(|errno| Error::Os { what: what(), source: errno.into() })
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// What came of an attempt to connect.
#[derive(Debug)]
pub enum Connecting {
    /// A connection on a socket that does not wait.
    Connected(OwnedFd),
    /// So many wait to be let in already; later, perhaps.
    Queued,
    /// Nobody listens there.
    Refused(Errno),
}

/// Connects to a peer that listens, without waiting for it: by the helper for this path, if there is one
/// ([`connect_through`](crate::connect_through)).
pub fn connect(path: &Path) -> Result<Connecting, Error> {
    connect_by_helper(path).unwrap_or_else(|| connect_directly(path))
}

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

impl Listener {
    /// Listens at a path, for this user only. A socket that a process left behind is replaced; one that is served is not.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Os { what: format!("listening at {}", path.display()), source };
        let address = address(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Of two processes that start at once, the second sees what the first has made.
        let folder = File::open(folder).map_err(failed)?;
        lock(&folder).map_err(failed)?;
        if let Ok(there) = fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                return Err(Error::NoSocket(path.into()));
            }
            let probe = socket().map_err(|errno| failed(errno.into()))?;
            match rustix::net::connect(&probe, &address) {
                Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed)?,
                _ => return Err(Error::InUse(path.into())),
            }
        }
        let socket = socket().map_err(|errno| failed(errno.into()))?;
        rustix::net::bind(&socket, &address).map_err(|errno| failed(errno.into()))?;
        // Nobody can connect before it listens.
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        rustix::net::listen(&socket, 8).map_err(|errno| failed(errno.into()))?;
        let made = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self { socket, path: path.into(), identity: (made.dev(), made.ino()) })
    }

    /// The next peer, on a socket that does not wait, if there is one.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(peer) => Ok(Some(peer)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path).map(|there| (there.dev(), there.ino()));
        if there.is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks a folder, against others who do the same.
fn lock(folder: &File) -> io::Result<()> {
    const LIMIT: Duration = Duration::from_secs(2);
    let start = Instant::now();
    loop {
        match rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) if start.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(1)),
            result => return Ok(result?),
        }
    }
}
