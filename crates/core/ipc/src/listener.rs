//! Listening unix sockets, and connecting to them.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, sockopt};

use crate::socket::{Error, address, socket};
use crate::{SocketAccess, inherited};

/// A socket that peers connect to. Its file is removed when it is dropped.
pub struct Listener {
    socket: OwnedFd,
    file: SocketFile,
    shortage: Mutex<FdExhaustion>,
}

/// The file of a socket, which is removed when this is dropped.
struct SocketFile {
    path: PathBuf,
    /// Device and inode of the socket bound to `path`. They show whether another process has replaced it. `None` if the file is to stay.
    identity: Option<(u64, u64)>,
}

/// State for getting over a lack of descriptors or memory.
struct FdExhaustion {
    /// A spare descriptor, closed to accept a peer and reject it.
    reserve: Option<OwnedFd>,
    /// Time of the next attempt, after nothing could be accepted at all.
    resume: Option<Instant>,
}

/// What to wait on for the next peer.
pub enum AcceptWait<'a> {
    /// The socket, readable when a peer has connected.
    Readable(BorrowedFd<'a>),
    /// Time to wait, not on the socket: peers cannot be accepted now, and the socket would be readable all the
    /// time. Call [`Listener::accept`] again after this time.
    Pause(Duration),
}

impl Listener {
    /// Pause of a listener that could accept nothing.
    const PAUSE: Duration = Duration::from_millis(50);

    /// Listens at a path, for this user only. A socket that a dead process left behind is replaced; one that is
    /// served is not.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        Self::bind_for(path, &SocketAccess::default())
    }

    /// Like [`bind`](Self::bind), for those who have this access. A socket that this process was [started with](inherited) is
    /// taken as it is.
    pub fn bind_for(path: &Path, access: &SocketAccess) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Os { what: format!("listening at {}", path.display()), source };
        let address = address(path)?;
        if let Some(socket) = inherited::take_unix(path) {
            let listener = Self::of_socket(socket, path)?;
            // Who is let in, and how long the file stays, is up to those who have bound it.
            return Self::new(listener.into_socket(), SocketFile { path: path.into(), identity: None });
        }
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
            return Err(Error::NoFolder { path: path.into(), folder: folder.into() });
        }
        // Of two processes that start at once, the second sees the socket of the first.
        let _lock = Lock::take(path)?;
        if let Ok(there) = fs::symlink_metadata(path) {
            remove_stale_socket(path, &address, &there)?;
        }
        let socket = socket().map_err(|errno| failed(errno.into()))?;
        // The file of a bound socket gets the socket's own mode, less the umask (unix(7)). So no other user can
        // connect at any time, and no path is looked up twice.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(|errno| failed(errno.into()))?;
        rustix::net::bind(&socket, &address).map_err(|errno| failed(errno.into()))?;
        if let Err(error) = access.apply(path) {
            let _ = fs::remove_file(path);
            return Err(failed(error));
        }
        let file = SocketFile { path: path.into(), identity: Some(identity(path).map_err(failed)?) };
        rustix::net::listen(&socket, 8).map_err(|errno| failed(errno.into()))?;
        Self::new(socket, file)
    }

    /// Takes over the socket of a listener of [another process](Self::into_socket), which has bound it to this path.
    ///
    /// # Errors
    /// It is not a listening unix socket; no descriptor is left.
    pub fn of_socket(socket: OwnedFd, path: &Path) -> Result<Self, Error> {
        let failed =
            |errno: Errno| Error::Os { what: format!("listening at {}", path.display()), source: errno.into() };
        let is_listener = sockopt::socket_domain(&socket).is_ok_and(|domain| domain == AddressFamily::UNIX)
            && sockopt::socket_acceptconn(&socket).is_ok_and(|listens| listens);
        if !is_listener {
            return Err(failed(Errno::NOTSOCK));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
        Self::new(socket, SocketFile { path: path.into(), identity: identity(path).ok() })
    }

    fn new(socket: OwnedFd, file: SocketFile) -> Result<Self, Error> {
        let reserve = reserve().map_err(|errno| Error::Os {
            what: format!("listening at {}", file.path.display()),
            source: errno.into(),
        })?;
        let shortage = Mutex::new(FdExhaustion { reserve: Some(reserve), resume: None });
        Ok(Self { socket, file, shortage })
    }

    /// Returns the socket, for another process that will accept the peers. Its file stays.
    pub fn into_socket(self) -> OwnedFd {
        let Self { socket, mut file, .. } = self;
        file.identity = None;
        socket
    }

    /// Accepts the next peer, if there is one, on a non-blocking socket. No error ends the server: if the
    /// process has no descriptor left for the peer, `reject` is called with the peer's socket, before that is
    /// closed, and may report the error to it. If the kernel has no memory, the peer stays queued.
    pub fn accept(&self, reject: impl FnOnce(BorrowedFd<'_>, io::Error)) -> Option<OwnedFd> {
        let accept = || rustix::net::accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        let mut shortage = self.shortage.lock().unwrap_or_else(PoisonError::into_inner);
        if shortage.resume.is_some_and(|resume| Instant::now() < resume) {
            return None;
        }
        shortage.resume = None;
        if shortage.reserve.is_none() {
            shortage.reserve = reserve().ok();
        }
        let mut result = accept();
        if let Err(errno @ (Errno::MFILE | Errno::NFILE)) = result
            && let Some(kept) = shortage.reserve.take()
        {
            drop(kept);
            result = accept().and_then(|peer| {
                reject(peer.as_fd(), errno.into());
                drop(peer);
                Err(Errno::AGAIN)
            });
            shortage.reserve = reserve().ok();
        }
        match result {
            Ok(peer) => return Some(peer),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => shortage.resume = Some(Instant::now() + Self::PAUSE),
        }
        None
    }

    /// Accepts nobody for some time. For servers whose last peer has cost others time, and would again.
    pub fn pause(&self, time: Duration) {
        self.shortage.lock().unwrap_or_else(PoisonError::into_inner).resume = Some(Instant::now() + time);
    }

    /// Returns what to wait on before the next [`accept`](Self::accept).
    pub fn wait_on(&self) -> AcceptWait<'_> {
        let resume = self.shortage.lock().unwrap_or_else(PoisonError::into_inner).resume;
        match resume.map(|resume| resume.saturating_duration_since(Instant::now())) {
            Some(left) if !left.is_zero() => AcceptWait::Pause(left),
            _ => AcceptWait::Readable(self.socket.as_fd()),
        }
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path).ok() == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of a path.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

fn reserve() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC)
}

/// Removes a socket that no process serves.
fn remove_stale_socket(path: &Path, address: &SocketAddrUnix, there: &fs::Metadata) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Os { what: format!("listening at {}", path.display()), source };
    let denied = || Error::Denied { path: path.into(), owner: there.uid() };
    if !there.file_type().is_socket() {
        return Err(Error::NoSocket(path.into()));
    }
    let probe = socket().map_err(|errno| failed(errno.into()))?;
    match rustix::net::connect(&probe, address) {
        Ok(()) | Err(Errno::AGAIN) => Err(Error::InUse(path.into())),
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(denied()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        },
        Err(Errno::ACCESS | Errno::PERM) => Err(denied()),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// A lock on a path, held while a server starts there. It is a file next to the path that only its owner can
/// open. (The folder itself would not do: anybody who may open it could hold a lock on it.)
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn take(path: &Path) -> Result<Self, Error> {
        const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        let start = Instant::now();
        loop {
            if let Some(file) = Self::attempt(&path)? {
                return Ok(Self { path, _file: file });
            }
            if start.elapsed() > LOCK_TIMEOUT {
                return Err(Error::Locked { path, why: "another process of this user has locked it".into() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn attempt(path: &Path) -> Result<Option<File>, Error> {
        let failed = |errno: Errno| Error::Os { what: format!("locking {}", path.display()), source: errno.into() };
        let whose = |owner: u32| Error::Locked { path: path.into(), why: format!("it belongs to user {owner}") };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file =
            rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(|errno| {
                match fs::symlink_metadata(path) {
                    Ok(there) if there.uid() != rustix::process::geteuid().as_raw() => whose(there.uid()),
                    _ => failed(errno),
                }
            })?;
        let opened = rustix::fs::fstat(&file).map_err(failed)?;
        if opened.st_uid != rustix::process::geteuid().as_raw() {
            return Err(whose(opened.st_uid));
        }
        if opened.st_mode & 0o077 != 0 {
            return Err(Error::Locked { path: path.into(), why: "others than its owner may open it".into() });
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        // The previous holder removes the file when it is done. If that happened before the lock was taken,
        // this is no longer the file that other processes would open.
        let found =
            fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (opened.st_dev, opened.st_ino));
        Ok(found.then(|| file.into()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
