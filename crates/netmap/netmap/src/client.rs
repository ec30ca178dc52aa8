//! Client of the serving process: a program's ports by name, with their rings and memory.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ringpass_ipc::{
    Connecting, ConnectionLost, Credentials, Descriptors, EventNotifier, EventWaiter, ReadStatus, Stream,
    check_interrupt, connect, wait_ready,
};
use ringpass_memory::{ForeignMemory, Memory};
use ringpass_port::{DEFAULT_LATENCY_BUDGET, Pause, SharedWaitPolicy, WaitPolicy, sleep_precisely};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::port_memory::CSB_BYTES;
use crate::protocol::{FDS, Reply, Request, RingPeer};
use crate::request::register::{MONITOR_RX, MONITOR_TX};
use crate::request::{AskedMemory, AskedOffsets, PortName, Register};
use crate::{Buffers, Notifier, Pools, PortRing, SyncError, Tap, attach_each, attach_monitor, attach_pipe};

/// An error between a program and the serving process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No server listens on the socket.
    #[error("nobody serves netmap ports at {0}; start 'ringpass netmapd', or set RINGPASS_NETMAP_SOCKET")]
    NoServer(PathBuf),
    /// The server has refused the request.
    #[error("{why}")]
    Refused {
        /// Error number as netmap defines it.
        errno: Errno,
        /// Cause and remedy, in a line.
        why: String,
    },
    /// The serving process has ended or does not answer.
    #[error("the process that serves netmap ports {0}")]
    ConnectionLost(String),
    /// A system call of this process has failed, or a ring is broken.
    #[error("{0}")]
    Os(String),
}

impl From<Error> for ringpass_port::Error {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::NoServer(_) => Self::NotFound(text),
            Error::Refused { errno, .. } => Self::refused(errno, text),
            Error::ConnectionLost(_) => Self::Gone(text),
            Error::Os(_) => Self::Fault(text),
        }
    }
}

impl From<ConnectionLost> for Error {
    fn from(lost: ConnectionLost) -> Self {
        Self::ConnectionLost(format!("is gone: {lost}"))
    }
}

/// Returns how a program waits at its rings: the latency budget is in `RINGPASS_LATENCY_BUDGET`, in microseconds from 0 to 10,000, or 50 µs.
///
/// # Errors
/// The variable has another value.
pub fn wait_policy() -> Result<WaitPolicy, Error> {
    let text = std::env::var_os("RINGPASS_LATENCY_BUDGET");
    text.map_or_else(|| Ok(DEFAULT_LATENCY_BUDGET), |text| latency_budget(&text)).map(WaitPolicy::new)
}

fn latency_budget(text: &OsStr) -> Result<Duration, Error> {
    let micros = text.to_str().and_then(|text| text.parse().ok()).filter(|micros| (0..=10_000).contains(micros));
    let wrong = || Error::Os("RINGPASS_LATENCY_BUDGET: write microseconds from 0 to 10000, such as 50".into());
    micros.map(Duration::from_micros).ok_or_else(wrong)
}

/// Returns the socket of the serving process: `RINGPASS_NETMAP_SOCKET` if set; else `ringpass-netmap.sock` in
/// `XDG_RUNTIME_DIR`, or in `/run` for root; else `netmap.sock` in the folder `ringpass-UID` in the folder for
/// temporary files, which is created if it does not exist.
///
/// # Errors
/// The folder `ringpass-UID` is not private to this user.
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

/// Creates a folder that only this user may enter, or checks that an existing one is such. Also checks that no
/// other user can replace the folder, so that its path may be used afterwards.
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
    let opened = opened.map_err(|errno| format!("it is not a folder of this user: {errno}"))?;
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

/// A registration that was granted, and not taken yet.
pub struct Granted {
    name: String,
    reply: Reply,
    fds: Vec<OwnedFd>,
}

/// Time until the server accepts the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time until a reply arrives: allocating the memory of a large port takes some seconds.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest status in bytes.
const MAX_STATUS: u64 = 1 << 30;

impl Client {
    /// Connects to a server of this user or of root. Others are refused, because the server decides which
    /// memory this program writes.
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
                    let stream = Stream::new(socket, 1 << 16, Descriptors::Trusted);
                    return Ok(Self { stream });
                }
                Connecting::Queued if start.elapsed() < CONNECT_TIMEOUT => {
                    check_interrupt().map_err(|error| Error::Os(error.to_string()))?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Connecting::Queued => return Err(Error::ConnectionLost("does not let anybody in".into())),
                Connecting::Refused(Errno::ACCESS) => {
                    let why = format!("{}: permission denied; it belongs to another user", path.display());
                    return Err(Error::Refused { errno: Errno::ACCESS, why });
                }
                Connecting::Refused(_) => return Err(Error::NoServer(path.into())),
            }
        }
    }

    /// Sends a request and waits for the reply, for at most 30 seconds. Returns it with the descriptors that
    /// came with it.
    pub fn ask(&mut self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.ask_with(request, Vec::new())
    }

    fn ask_with(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Result<(Reply, Vec<OwnedFd>), Error> {
        match self.stream.send(request.bytes(), fds) {
            // The server may have sent a reason before it closed the connection.
            Ok(()) | Err(ConnectionLost::Closed) => {}
            Err(lost) => return Err(lost.into()),
        }
        let start = Instant::now();
        let (mut text, mut fds) = (Vec::new(), Vec::new());
        let mut len = None;
        // The reply may be longer than the stream's buffer.
        loop {
            let arrived = self.stream.arrived();
            if len.is_none()
                && let Some(first) = arrived.first_chunk()
            {
                len = Some(Reply::len_of(first).ok_or(Error::ConnectionLost("sends what is not an answer".into()))?);
            }
            if let Some(len) = len {
                let (range, more) = self.stream.take(self.stream.arrived().len().min(len - text.len()));
                text.extend_from_slice(self.stream.bytes(range));
                fds.extend(more);
                if text.len() == len {
                    break;
                }
            }
            if self.stream.receive()? == ReadStatus::WouldBlock {
                let left = REPLY_TIMEOUT
                    .checked_sub(start.elapsed())
                    .ok_or(Error::ConnectionLost("does not answer".into()))?;
                let flags = if self.stream.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                wait_ready(self.stream.socket(), flags, left).map_err(|error| Error::Os(error.to_string()))?;
                self.stream.flush()?;
            }
        }
        let reply = Reply::parse(&text).ok_or(Error::ConnectionLost("sends what is not an answer".into()))?;
        match reply.errno {
            Some(errno) => Err(Error::Refused { errno, why: with_names(&reply.text) }),
            None => Ok((reply, fds)),
        }
    }

    /// Returns the status of all ports, as JSON.
    pub fn status(&mut self) -> Result<String, Error> {
        let mut text = String::new();
        loop {
            let (reply, _) = self.ask(&Request::status(text.len() as u64))?;
            let total = u64::from_le_bytes(*reply.body.first_chunk().expect("64 bytes"));
            text.push_str(&reply.text);
            if text.len() as u64 >= total.min(MAX_STATUS) {
                return Ok(text);
            }
            if reply.text.is_empty() {
                return Err(Error::ConnectionLost("sends what is not an answer".into()));
            }
        }
    }

    /// Makes a memory of a file of the program, from `offset` on, in which the connection's registration will lie if it names the
    /// memory's number. Returns it as granted.
    ///
    /// # Errors
    /// `EINVAL` or `ENOMEM` for a file that is not in memory, or too short, and for pools that do not fit.
    pub fn bring_memory(&mut self, file: OwnedFd, offset: u64, asked: &AskedMemory) -> Result<AskedMemory, Error> {
        let (reply, _) = self.ask_with(&Request::external(asked, offset), vec![file])?;
        Ok(AskedMemory::parse(&reply.body))
    }

    /// Registers a port. The connection belongs to the port from then on.
    pub fn register(mut self, port: &str, register: &Register) -> Result<Port, Error> {
        let granted = self.try_register(port, register)?;
        self.into_port(granted)
    }

    /// Registers a port, and keeps the connection if that is refused. What is granted is to be taken by
    /// [`into_port`](Self::into_port).
    pub fn try_register(&mut self, port: &str, register: &Register) -> Result<Granted, Error> {
        let request = Request::register(port, register).with_cookie(cookie(self.socket())?);
        let (reply, fds) = self.ask(&request)?;
        Ok(Granted { name: port.to_owned(), reply, fds })
    }

    /// Takes a registration that was granted on this connection, which belongs to the port from then on.
    pub fn into_port(self, Granted { name, reply, fds }: Granted) -> Result<Port, Error> {
        Port::new(self, &name, &reply, fds)
    }

    /// Socket of the connection. The registration on it lasts until the last duplicate of its descriptor is closed, in any process.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    /// Takes a connection that another process has made, whose `socket` this process has got, to the server at `path`. Returns
    /// the connection, and its registration if there is one.
    ///
    /// # Errors
    /// The server is gone, or the registration belongs to another user.
    pub fn adopt(path: &Path, socket: OwnedFd) -> Result<(Self, Option<Granted>), Error> {
        let cookie = cookie(socket.as_fd())?;
        let client = Self { stream: Stream::new(socket, 1 << 16, Descriptors::Trusted) };
        match Self::connect(path)?.ask(&Request::adopt(cookie)) {
            Ok((reply, fds)) => {
                let name = reply.text.clone();
                Ok((client, Some(Granted { name, reply: Reply { text: String::new(), ..reply }, fds })))
            }
            Err(Error::Refused { errno: Errno::NOENT, .. }) => Ok((client, None)),
            Err(error) => Err(error),
        }
    }
}

/// Returns the number by which the kernel knows a socket, in all processes.
pub fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Error> {
    rustix::net::sockopt::socket_cookie(socket).map_err(|errno| Error::Os(format!("a socket: {errno}")))
}

/// Returns the error of a ring whose positions only this program should move, extended by who else may have
/// moved them: `others` had the port before, or nobody if it is empty.
pub(crate) fn shared_error(error: &str, others: &str) -> String {
    if others.is_empty() {
        format!("{error}; if another program has this end of the port too ('ringpass vale' tells), end one of the two")
    } else {
        format!("{error}; {others} has this end of the port too: end one of the two")
    }
}

/// Adds the programs' names to the process ids of a server's text. The server itself cannot open `/proc` in its
/// sandbox.
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

/// A registered port. The registration ends when it is dropped.
pub struct Port {
    name: String,
    register: Register,
    tx: Vec<PortRing>,
    rx: Vec<PortRing>,
    buffers: Buffers,
    memory: OwnedFd,
    memory_offset: u64,
    call_event: EventWaiter,
    /// How often the other side was woken.
    kicks_sent: Arc<AtomicU64>,
    waiting: SharedWaitPolicy,
    pools: Pools,
    others: String,
    client: Client,
}

impl Port {
    /// Opens a port by name at the server's socket. `more` holds what the name does not specify; see
    /// [`PortName::asked`].
    pub fn open(name: &PortName, socket: &Path, more: Register) -> Result<Self, Error> {
        let mut port = Client::connect(socket)?.register(&name.port, &name.asked(more))?;
        port.name = name.to_string();
        Ok(port)
    }

    fn new(client: Client, name: &str, reply: &Reply, fds: Vec<OwnedFd>) -> Result<Self, Error> {
        let wrong = || Error::ConnectionLost("grants what cannot be".into());
        let register = Register::parse(reply.body.first_chunk().expect("64 bytes")).map_err(|_| wrong())?;
        let mut fds = fds.into_iter();
        let first: Vec<_> = fds.by_ref().take(FDS).collect();
        let [memory, csb, call_event, other] = <[OwnedFd; FDS]>::try_from(first).map_err(|_| wrong())?;
        let map = |fd: BorrowedFd<'_>, offset, len| {
            let mapped = ForeignMemory::map_kept(fd, offset, len).map_err(|error| Error::Os(error.to_string()))?;
            Ok::<Memory, Error>(mapped.into())
        };
        let memory_offset = reply.memory_offset();
        let mapped = map(memory.as_fd(), memory_offset, register.memory_size as usize)?;
        let csb = map(csb.as_fd(), 0, CSB_BYTES)?;
        let (call_event, other) =
            (EventWaiter::on(call_event).map_err(|_| wrong())?, EventNotifier::new(other).map_err(|_| wrong())?);
        let kicks_sent = Arc::new(AtomicU64::new(0));
        let counter = kicks_sent.clone();
        let ring: Notifier = Arc::new(move || {
            counter.fetch_add(1, Relaxed);
            other.notify();
        });
        let own = register.offset as usize;
        let buffers = Buffers::of(&mapped, &reply.pools).ok_or_else(wrong)?;
        let mut map_tap = |rings| {
            let mapped = map(fds.next().ok_or_else(wrong)?.as_fd(), 0, Tap::bytes(rings))?;
            Tap::new(&mapped, rings, &buffers).ok_or_else(wrong)
        };
        let rings = match reply.peer {
            RingPeer::Server => attach_each(&mapped, own, register.host_rings, &csb, |_| ring.clone()),
            RingPeer::Pipe { other, first } => {
                let [tx, rx] = register.rings;
                let tap = map_tap(if first { [tx, rx] } else { [rx, tx] })?;
                let monitors = fds.next().and_then(|event| EventNotifier::new(event).ok()).ok_or_else(wrong)?;
                let monitors: Notifier = Arc::new(move || monitors.notify());
                let tap = Some((&tap, &monitors));
                attach_pipe(&mapped, (own, other as usize), first, &csb, &ring, tap)
            }
            RingPeer::Monitored { rings, first } => {
                let ways = [MONITOR_TX, MONITOR_RX].map(|way| register.flags & way != 0);
                attach_monitor(&mapped, own, &csb, &map_tap(rings)?, (first, ways))
            }
        };
        let [tx, rx] = rings.ok_or_else(wrong)?;
        let waiting = wait_policy()?.into();
        let (pools, others) = (reply.pools, with_names(&reply.text));
        let name = name.to_owned();
        Ok(Self {
            name,
            register,
            tx,
            rx,
            buffers,
            memory,
            memory_offset,
            call_event,
            kicks_sent,
            waiting,
            pools,
            others,
            client,
        })
    }

    /// Name of the port; as in a request's header if it was registered by that.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The registration as granted.
    pub fn granted(&self) -> &Register {
        &self.register
    }

    /// Ends the registration, and returns the connection for another one.
    pub fn unregister(self) -> Result<Client, Error> {
        let mut client = self.client;
        client.ask(&Request::unregister())?;
        Ok(client)
    }

    /// Sets where frames begin in the buffers of its rings. Returns what was granted.
    pub fn set_offsets(&mut self, asked: &AskedOffsets) -> Result<AskedOffsets, Error> {
        let (reply, _) = self.client.ask(&Request::offsets(asked))?;
        Ok(AskedOffsets::parse(reply.body.first_chunk().expect("64 bytes")))
    }

    /// Programs that had the port already when it was registered, in words; empty if there were none. Programs
    /// that use the same rings at the same time without coordination get errors.
    pub fn others(&self) -> &str {
        &self.others
    }

    /// Converts an error of one of its rings, with the port's name and the other programs that have it.
    pub fn failed(&self, error: SyncError) -> Error {
        Error::Os(format!("{}: {}", self.name, shared_error(&error.to_string(), &self.others)))
    }

    /// Tx rings that the registration covers.
    pub fn tx(&self) -> &[PortRing] {
        &self.tx
    }

    /// Rx rings that the registration covers.
    pub fn rx(&self) -> &[PortRing] {
        &self.rx
    }

    /// Takes the Tx rings and the Rx rings out of the port, for callers that drive them themselves. The registration
    /// still ends when the port is dropped.
    pub fn take_rings(&mut self) -> [Vec<PortRing>; 2] {
        [std::mem::take(&mut self.tx), std::mem::take(&mut self.rx)]
    }

    /// Buffers of the slots.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// File of the memory, to be mapped again from [`memory_offset`](Self::memory_offset) on.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Where the memory begins in its file, in bytes.
    pub fn memory_offset(&self) -> u64 {
        self.memory_offset
    }

    /// Eventfd that is signalled when an armed ring has news. The server and programs with the same port share
    /// it, so it must only be watched edge-triggered.
    pub fn call_event(&self) -> BorrowedFd<'_> {
        self.call_event.event()
    }

    /// Returns a waiter of its own on [`call_event`](Self::call_event).
    pub fn new_waiter(&self) -> io::Result<EventWaiter> {
        self.call_event.try_clone()
    }

    /// Pools of the memory.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Whether the serving process is gone.
    pub fn is_lost(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.server(), PollFlags::IN)];
        poll_for(&mut fds, Duration::ZERO).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Socket of the connection; it hangs up when the server ends.
    pub fn server(&self) -> BorrowedFd<'_> {
        self.client.stream.socket()
    }

    /// Clears the pending signals of [`call_event`](Self::call_event).
    pub fn clear_events(&self) {
        self.call_event.clear();
    }

    /// How often this port has woken the other side.
    pub fn kicks_sent(&self) -> u64 {
        self.kicks_sent.load(Relaxed)
    }

    /// How threads wait for this port.
    pub fn waiting(&self) -> &SharedWaitPolicy {
        &self.waiting
    }

    /// Sets how [`wait`](Self::wait) waits; as [`wait_policy`] says unless set.
    pub fn set_wait_policy(&mut self, policy: WaitPolicy) {
        self.waiting = policy.into();
    }

    /// Waits until one of these rings of this port has slots for its program; see [`wait`].
    pub fn wait<'a>(&self, rings: impl Iterator<Item = &'a PortRing> + Clone, limit: Duration) -> Result<bool, Error> {
        wait(rings.map(|ring| (self, ring)), &self.waiting, limit)
    }
}

/// Waits until one of these rings has slots for its program (beyond `cur`), for at most `limit`. Returns
/// whether one has.
///
/// Passes on the slots that programs have released. Spins, sleeps or blocks, as the policy says.
pub fn wait<'a>(
    rings: impl Iterator<Item = (&'a Port, &'a PortRing)> + Clone,
    waiting: &SharedWaitPolicy,
    limit: Duration,
) -> Result<bool, Error> {
    if let slots @ 1.. = sync(rings.clone())? {
        waiting.found(slots);
        return Ok(true);
    }
    if limit.is_zero() {
        return Ok(false);
    }
    let start = Instant::now();
    let left = || limit.saturating_sub(start.elapsed());
    loop {
        match waiting.pause() {
            // The policy lets no wait spin for long, so the limit is not looked at each time: that would read the clock once more.
            Pause::Spin => std::hint::spin_loop(),
            _ if left().is_zero() => return Ok(false),
            Pause::Yield => waiting.let_others_run(),
            Pause::Collect(time) if time < left() => sleep_precisely(time),
            Pause::Collect(_) | Pause::Block => {
                let slots = block(rings, left)?;
                waiting.found(slots);
                return Ok(slots > 0);
            }
        }
        if let slots @ 1.. = sync(rings.clone())? {
            waiting.found(slots);
            return Ok(true);
        }
    }
}

/// Synchronises rings. Returns how many slots their programs have, if one has some beyond its `cur`, or 0.
fn sync<'a>(rings: impl Iterator<Item = (&'a Port, &'a PortRing)> + Clone) -> Result<u32, Error> {
    for (port, ring) in rings.clone() {
        ring.sync().map_err(|error| port.failed(error))?;
    }
    Ok(ready_slots(rings))
}

fn ready_slots<'a>(rings: impl Iterator<Item = (&'a Port, &'a PortRing)>) -> u32 {
    rings.filter(|(_, ring)| ring.is_ready()).map(|(_, ring)| ring.own()).sum()
}

/// Blocks until a ring has slots beyond its program's `cur`, for as long as time is left. Returns how many slots their programs
/// have.
fn block<'a>(
    rings: impl Iterator<Item = (&'a Port, &'a PortRing)> + Clone,
    left: impl Fn() -> Duration,
) -> Result<u32, Error> {
    let mut fds = Vec::new();
    for (port, _) in rings.clone() {
        fds.push(PollFd::new(&port.call_event, PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(port.server(), PollFlags::IN));
    }
    loop {
        let mut nothing = true;
        for (port, ring) in rings.clone() {
            nothing &= ring.arm().map_err(|error| port.failed(error))?;
        }
        let left = left();
        if !nothing || left.is_zero() {
            rings.clone().for_each(|(_, ring)| ring.disarm());
            return Ok(if nothing { 0 } else { ready_slots(rings).max(1) });
        }
        // Several programs may share an eventfd, and another one may have cleared it; so the time is bounded.
        let _ = poll_for(&mut fds, left.min(RECHECK_INTERVAL));
        for ((port, _), fds) in rings.clone().zip(fds.chunks_exact(2)) {
            if fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
                return Err(Error::ConnectionLost("is gone".into()));
            }
            if !fds[0].revents().is_empty() {
                port.clear_events();
            }
        }
    }
}

/// A blocked thread rechecks its rings at this interval.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_budget_is_in_microseconds() {
        assert!(latency_budget("75".as_ref()).is_ok_and(|budget| budget == Duration::from_micros(75)));
        for wrong in ["", "-1", "10001", "5e-5", "é"] {
            assert!(latency_budget(wrong.as_ref()).is_err(), "{wrong}");
        }
    }
}
