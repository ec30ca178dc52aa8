//! A program's side of the serving process: ports by name, their rings and memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ringpass_memory::ForeignMemory;
use ringpass_peer::{Arrived, Connecting, Credentials, Lost, Signal, Stream, Waiter, connect};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::protocol::{Behind, FDS, Granted, Reply, Request};
use crate::request::{PortName, Register};
use crate::{Bell, Buffers, Memory, Patience, PortRing, SyncError, attach, attach_pipe};

/// What goes wrong between a program and the serving process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody serves.
    #[error("nobody serves netmap ports at {0}; start 'ringpass netmapd', or set RINGPASS_NETMAP_SOCKET")]
    Nobody(PathBuf),
    /// It was refused.
    #[error("{why}")]
    Refused {
        /// As netmap says it.
        errno: Errno,
        /// Cause and remedy.
        why: String,
    },
    /// The serving process has ended, or is silent.
    #[error("the process that serves netmap ports {0}")]
    Lost(String),
    /// This process could not do its part.
    #[error("{0}")]
    Os(String),
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::Lost(format!("is gone: {lost}"))
    }
}

/// Where the serving process listens, if nobody says: `RINGPASS_NETMAP_SOCKET`, or `ringpass-netmap.sock` in
/// `XDG_RUNTIME_DIR`, or in `/run` for root, or else `netmap.sock` in `ringpass-UID` in the folder for temporary files, which is made
/// if it is not there. An error if that one is not this user's alone.
pub fn default_socket() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = variable("RINGPASS_NETMAP_SOCKET") {
        return Ok(path);
    }
    let user = rustix::process::geteuid();
    let folder = match variable("XDG_RUNTIME_DIR") {
        Some(folder) => folder,
        None if user.is_root() => "/run".into(),
        None => {
            let folder = std::env::temp_dir().join(format!("ringpass-{}", user.as_raw()));
            check_own(&folder, user.as_raw()).map_err(|why| {
                let folder = folder.display();
                Error::Os(format!("{folder}: {why}; remove it, or set XDG_RUNTIME_DIR or RINGPASS_NETMAP_SOCKET"))
            })?;
            return Ok(folder.join("netmap.sock"));
        }
    };
    Ok(folder.join("ringpass-netmap.sock"))
}

/// Makes a folder that only this user may enter, or checks that it is such a one; and that nobody else can put another in its
/// place, so that its path may be used from then on.
fn check_own(folder: &Path, user: u32) -> Result<(), String> {
    const OTHERS: u32 = 0o077;
    const WRITABLE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    match rustix::fs::mkdir(folder, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(format!("it cannot be made: {errno}")),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty());
    let opened = opened.map_err(|errno| format!("it is no folder of this user: {errno}"))?;
    let stat = rustix::fs::fstat(&opened).map_err(|errno| errno.to_string())?;
    if stat.st_uid != user || stat.st_mode & OTHERS != 0 {
        let mode = stat.st_mode & 0o7777;
        return Err(format!("its owner is user {} and its mode {mode:o}, not {user} and 700", stat.st_uid));
    }
    let parent = rustix::fs::statat(&opened, "..", AtFlags::empty()).map_err(|errno| errno.to_string())?;
    if ![0, user].contains(&parent.st_uid) || parent.st_mode & WRITABLE != 0 && parent.st_mode & STICKY == 0 {
        return Err("others may rename what lies in the folder above it".into());
    }
    Ok(())
}

/// A connection to the serving process.
pub struct Client {
    stream: Stream,
}

/// For being let in.
const PATIENCE: Duration = Duration::from_secs(10);
/// For an answer: the memory of a large port takes some seconds.
const ANSWER: Duration = Duration::from_secs(30);

impl Client {
    /// Connects to a process of this user or of root: whoever serves says where this program writes.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let start = Instant::now();
        loop {
            match connect(path).map_err(|error| Error::Os(error.to_string()))? {
                Connecting::Connected(socket) => {
                    let server = Credentials::of_peer(&socket).map_err(|error| Error::Os(error.to_string()))?;
                    if !server.is_own_or_root() {
                        let (path, user) = (path.display(), server.uid);
                        let why = format!(
                            "{path} is served by user {user}, who is neither this user nor root; start a 'ringpass netmapd' of your own, or take another path"
                        );
                        return Err(Error::Refused { errno: Errno::ACCESS, why });
                    }
                    return Ok(Self { stream: Stream::new(socket, 1 << 16) });
                }
                Connecting::Queued if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
                Connecting::Queued => return Err(Error::Lost("does not let anybody in".into())),
                Connecting::Refused(Errno::ACCESS) => {
                    let why = format!("{}: permission denied; it belongs to another user", path.display());
                    return Err(Error::Refused { errno: Errno::ACCESS, why });
                }
                Connecting::Refused(_) => return Err(Error::Nobody(path.into())),
            }
        }
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        match self.stream.send(request.bytes(), Vec::new()) {
            // It may have said why before it hung up.
            Ok(()) | Err(Lost::Closed) => {}
            Err(lost) => return Err(lost.into()),
        }
        let start = Instant::now();
        let (mut text, mut fds) = (Vec::new(), Vec::new());
        let mut len = None;
        // The text may be longer than what the stream takes at a time.
        loop {
            let arrived = self.stream.arrived();
            if len.is_none()
                && let Some(first) = arrived.first_chunk()
            {
                len = Some(Reply::len_of(first).ok_or(Error::Lost("sends what is no answer".into()))?);
            }
            if let Some(len) = len {
                let (range, more) = self.stream.take(self.stream.arrived().len().min(len - text.len()));
                text.extend_from_slice(self.stream.bytes(range));
                fds.extend(more);
                if text.len() == len {
                    break;
                }
            }
            if self.stream.receive()? == Arrived::Nothing {
                let left = ANSWER.checked_sub(start.elapsed()).ok_or(Error::Lost("does not answer".into()))?;
                let flags = if self.stream.blocked() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                let _ = poll_for(&mut [PollFd::from_borrowed_fd(self.stream.socket(), flags)], left);
                self.stream.flush()?;
            }
        }
        let reply = Reply::parse(&text).ok_or(Error::Lost("sends what is no answer".into()))?;
        match reply.errno {
            Some(errno) => Err(Error::Refused { errno, why: with_names(&reply.text) }),
            None => Ok((reply, fds)),
        }
    }

    /// What ports there are, as JSON.
    pub fn status(&mut self) -> Result<String, Error> {
        Ok(self.ask(&Request::status())?.0.text)
    }

    /// Registers a port. The connection is the port's from then on.
    pub fn register(mut self, port: &str, register: &Register) -> Result<Port, Error> {
        let (reply, fds) = self.ask(&Request::register(port, register))?;
        Port::new(self, port, &reply, fds)
    }
}

/// An error of a ring whose positions this program alone should move, and who may have moved them: `others` had the port before.
pub(crate) fn shared_error(error: &str, others: &str) -> String {
    if others.is_empty() {
        format!("{error}; if another program has this end of the port too ('ringpass vale' tells), end one of the two")
    } else {
        format!("{error}; {others} has this end of the port too: end one of the two")
    }
}

/// A server's text with the programs' names where it has process ids: the server cannot open their files in its sandbox.
fn with_names(text: &str) -> String {
    let mut parts = text.split("pid ");
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let pid: String = part.chars().take_while(char::is_ascii_digit).collect();
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        match comm.trim_end() {
            "" => named.push_str("pid "),
            comm => named.push_str(&format!("'{}', pid ", comm.escape_debug())),
        }
        named.push_str(part);
    }
    named
}

fn poll_for(fds: &mut [PollFd<'_>], limit: Duration) -> io::Result<usize> {
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    Ok(poll(fds, Some(&limit))?)
}

/// A registered port. It ends when dropped.
pub struct Port {
    name: String,
    register: Register,
    tx: Vec<PortRing>,
    rx: Vec<PortRing>,
    buffers: Buffers,
    memory: OwnedFd,
    bell: Waiter,
    /// How often the other side was woken.
    rung: Arc<AtomicU64>,
    patience: Patience,
    granted: Granted,
    others: String,
    client: Client,
}

impl Port {
    /// Opens a port by its name at the socket of the serving process. `more` is what the name does not say; see
    /// [`PortName::asked`].
    pub fn open(name: &PortName, socket: &Path, more: Register) -> Result<Self, Error> {
        let mut port = Client::connect(socket)?.register(&name.port, &name.asked(more))?;
        port.name = name.to_string();
        Ok(port)
    }

    fn new(client: Client, name: &str, reply: &Reply, fds: Vec<OwnedFd>) -> Result<Self, Error> {
        let wrong = || Error::Lost("grants what cannot be".into());
        let register = Register::parse(reply.body.first_chunk().expect("64 bytes")).map_err(|_| wrong())?;
        let [memory, csb, bell, other] = <[OwnedFd; FDS]>::try_from(fds).map_err(|_| wrong())?;
        let map = |fd: BorrowedFd<'_>, len| {
            let mapped = ForeignMemory::map(fd, 0, len).map_err(|error| Error::Os(error.to_string()))?;
            Ok::<Memory, Error>(mapped.into())
        };
        let mapped = map(memory.as_fd(), register.memory_size as usize)?;
        let csb = map(csb.as_fd(), 2 * 4096)?;
        let (bell, other) = (Waiter::on(bell).map_err(|_| wrong())?, Signal::new(other).map_err(|_| wrong())?);
        let rung = Arc::new(AtomicU64::new(0));
        let counter = rung.clone();
        let ring: Bell = Arc::new(move || {
            counter.fetch_add(1, Relaxed);
            other.raise();
        });
        let own = register.offset as usize;
        let rings = match reply.granted.behind {
            Behind::Server => attach(&mapped, own, &csb, &ring),
            Behind::Pipe { other, first } => attach_pipe(&mapped, (own, other as usize), first, &csb, &ring),
        };
        let [tx, rx] = rings.ok_or_else(wrong)?;
        let buffers = Buffers::of(&mapped, &reply.granted.pools).ok_or_else(wrong)?;
        let patience = Patience::default();
        let (granted, others) = (reply.granted, with_names(&reply.text));
        let name = name.to_owned();
        Ok(Self { name, register, tx, rx, buffers, memory, bell, rung, patience, granted, others, client })
    }

    /// What was granted.
    pub fn granted(&self) -> &Register {
        &self.register
    }

    /// Which programs had the port already when it was registered, in words; empty: none. Rings that several programs use at the
    /// same time without an agreement end in errors.
    pub fn others(&self) -> &str {
        &self.others
    }

    /// An error of one of its rings, with the port's name and who else has it.
    pub(crate) fn failed(&self, error: SyncError) -> Error {
        Error::Os(format!("{}: {}", self.name, shared_error(&error.to_string(), &self.others)))
    }

    /// Rings to send, of those that the name is for.
    pub fn tx(&self) -> &[PortRing] {
        &self.tx
    }

    /// Rings to receive.
    pub fn rx(&self) -> &[PortRing] {
        &self.rx
    }

    /// The buffers of slots.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The memory, to be mapped once more.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// An eventfd that is signalled when an armed ring has news. The serving process and programs with the same port share it, so
    /// it must only be watched for edges.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.event()
    }

    /// The connection: at its end, the serving process is gone.
    pub fn server(&self) -> BorrowedFd<'_> {
        self.client.stream.socket()
    }

    /// Takes back what has rung.
    pub fn silence(&self) {
        self.bell.clear();
    }

    /// How often the other side was woken from here.
    pub fn rung(&self) -> u64 {
        self.rung.load(Relaxed)
    }

    /// How long [`wait`](Self::wait) looks before it sleeps.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Waits until one of these rings of this port has slots for its program; see [`wait`].
    pub fn wait<'a>(&self, rings: impl Iterator<Item = &'a PortRing> + Clone, limit: Duration) -> Result<bool, Error> {
        wait(rings.map(|ring| (self, ring)), &self.patience, limit)
    }
}

/// A port taken apart, for who uses its rings in another way. The port ends with `client`.
pub struct Parts {
    /// What was granted.
    pub register: Register,
    /// Rings to send, and to receive.
    pub rings: [Vec<PortRing>; 2],
    /// Its memory.
    pub buffers: Buffers,
    /// The memory's file.
    pub memory: OwnedFd,
    /// See [`Port::bell`].
    pub bell: Waiter,
    /// What more was granted.
    pub granted: Granted,
    /// See [`Port::others`].
    pub others: String,
    /// The connection.
    pub client: Client,
}

impl From<Port> for Parts {
    fn from(port: Port) -> Self {
        let Port { register, tx, rx, buffers, memory, bell, granted, others, client, .. } = port;
        Self { register, rings: [tx, rx], buffers, memory, bell, granted, others, client }
    }
}

impl Client {
    /// Whether the serving process is gone.
    pub fn is_lost(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.stream.socket(), PollFlags::IN)];
        poll_for(&mut fds, Duration::ZERO).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// Waits until one of these rings has slots for its program (beyond `cur`), for at most `limit`; what programs have
/// given up is passed on. Returns whether one has. Looks for a while, which adapts to how long waits are, before it sleeps.
pub fn wait<'a>(
    rings: impl Iterator<Item = (&'a Port, &'a PortRing)> + Clone,
    patience: &Patience,
    limit: Duration,
) -> Result<bool, Error> {
    for round in 0..=patience.rounds() {
        let mut ready = false;
        for (port, ring) in rings.clone() {
            ring.sync().map_err(|error| port.failed(error))?;
            ready |= ring.is_ready();
        }
        if ready {
            return Ok(true);
        }
        Patience::pass(round);
    }
    let start = Instant::now();
    let mut fds = Vec::new();
    for (port, _) in rings.clone() {
        fds.push(PollFd::new(&port.bell, PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(port.server(), PollFlags::IN));
    }
    loop {
        let mut nothing = true;
        for (port, ring) in rings.clone() {
            nothing &= ring.arm().map_err(|error| port.failed(error))?;
        }
        let left = limit.saturating_sub(start.elapsed());
        if !nothing || left.is_zero() {
            rings.for_each(|(_, ring)| ring.disarm());
            patience.slept(start.elapsed());
            return Ok(!nothing);
        }
        // Should several programs share a bell, another may have silenced it.
        let _ = poll_for(&mut fds, left.min(LOOK_AROUND));
        for ((port, _), fds) in rings.clone().zip(fds.chunks_exact(2)) {
            if fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
                return Err(Error::Lost("is gone".into()));
            }
            if !fds[0].revents().is_empty() {
                port.silence();
            }
        }
    }
}

/// A sleeper looks around so often.
const LOOK_AROUND: Duration = Duration::from_millis(500);
