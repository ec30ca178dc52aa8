//! A server: its place in the file system, and one client after the other.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::{Device, Ended, Error, Session};

/// A socket that clients connect to, removed when dropped.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket at `path`: another process may have taken the path over.
    identity: (u64, u64),
}

pub(crate) fn address(path: &Path) -> Result<SocketAddrUnix, Error> {
    let what = || format!("{}: a path for a socket has at most 107 bytes", path.display());
    SocketAddrUnix::new(path).map_err(|errno| Error::Os { what: what(), source: errno.into() })
}

pub(crate) fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)
}

impl Listener {
    /// Listens at a path, for this user only. A socket that a server left behind is replaced; one that is served is
    /// not.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Os { what: format!("listening at {}", path.display()), source };
        let address = address(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Of two servers that start at once, the second sees what the first has made.
        let folder = File::open(folder).map_err(failed)?;
        lock(&folder).map_err(failed)?;
        if let Ok(there) = fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                return Err(Error::NoSocket(path.into()));
            }
            let probe = socket(SocketFlags::NONBLOCK).map_err(|errno| failed(errno.into()))?;
            match rustix::net::connect(&probe, &address) {
                Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed)?,
                _ => return Err(Error::InUse(path.into())),
            }
        }
        let socket = socket(SocketFlags::NONBLOCK).map_err(|errno| failed(errno.into()))?;
        rustix::net::bind(&socket, &address).map_err(|errno| failed(errno.into()))?;
        // Nobody can connect before it listens.
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        rustix::net::listen(&socket, 8).map_err(|errno| failed(errno.into()))?;
        let made = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self { socket, path: path.into(), identity: (made.dev(), made.ino()) })
    }

    /// The next client, if there is one.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(client) => Ok(Some(client)),
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

/// What has happened at a server.
#[derive(Debug)]
pub enum Event {
    /// A client has come.
    Connected,
    /// A client was turned away: there is one already.
    Busy,
    /// The client did something that was refused; the session goes on.
    Refused(String),
    /// The client's session has ended; the device is as after power-on.
    Ended(Ended),
    /// A client could not be let in.
    Failed(io::Error),
}

/// Serves a device to one client after the other.
pub struct Server<D> {
    listener: Listener,
    session: Option<Session>,
    /// What is served.
    pub device: D,
}

impl<D: Device> Server<D> {
    /// A server that waits for its first client.
    pub fn new(listener: Listener, device: D) -> Self {
        Self { listener, session: None, device }
    }

    /// Does what there is to do, without waiting. Returns how many messages were handled. What happened is handed to
    /// `report`.
    pub fn turn(&mut self, report: &mut dyn FnMut(Event)) -> usize {
        self.welcome(report);
        self.serve(report)
    }

    /// Lets the next client in, or turns it away.
    pub fn welcome(&mut self, report: &mut dyn FnMut(Event)) {
        match self.listener.accept() {
            Ok(Some(_)) if self.session.is_some() => report(Event::Busy),
            Ok(Some(socket)) => {
                self.session = Some(Session::new(socket));
                report(Event::Connected);
            }
            Ok(None) => {}
            Err(error) => report(Event::Failed(error)),
        }
    }

    /// Handles the client's messages.
    pub fn serve(&mut self, report: &mut dyn FnMut(Event)) -> usize {
        let Some(session) = &mut self.session else { return 0 };
        let result = session.handle(&mut self.device);
        if let Some(refusal) = session.take_refusal() {
            report(Event::Refused(refusal));
        }
        result.unwrap_or_else(|ended| {
            self.end();
            report(Event::Ended(ended));
            0
        })
    }

    /// Ends the session, if there is one.
    pub fn end(&mut self) {
        if let Some(session) = self.session.take() {
            session.end(&mut self.device);
        }
    }

    /// Whether a client is there.
    pub fn connected(&self) -> bool {
        self.session.is_some()
    }

    /// What to wait on before the next turn, and for what.
    pub fn wait_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let session = self.session.as_ref().map(|session| {
            let (fd, flags, _) = session.wait_on();
            (fd, flags)
        });
        std::iter::once((self.listener.as_fd(), PollFlags::IN)).chain(session)
    }
}

impl<D> Server<D> {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }
}
