//! A port on an interface to which another process has attached a program.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use ringpass_ipc::{
    Connecting, ConnectionLost, Credentials, Descriptors, ReadStatus, Stream, check_interrupt, connect, wait_ready,
};
use ringpass_memory::Mempool;
use ringpass_port::Error;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::messages::{Answer, Ask, MAX_QUEUES, Tell, Verdict};
use super::socket::{Socket, wrong};
use super::{BUSY, Control, Granted, Wanted};

/// Time until the answer has come: a card may be reset for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The connection to the process that has attached the program.
struct Client {
    stream: Stream,
    is_running: bool,
    gone: Option<String>,
}

/// Asks the process at this socket for a socket on each queue.
pub(super) fn open(name: &str, path: &Path, wanted: &Wanted, pool: &Mempool) -> Result<Granted, Error> {
    let config = |what: String| Error::Config(format!("xdp:{name}: {what}"));
    if wanted.queues > MAX_QUEUES {
        return Err(config(format!("--queues: with socket=, {MAX_QUEUES} at most")));
    }
    let file = pool.region().file().map_err(|error| config(error.to_string()))?;
    let start = Instant::now();
    let mut busy = None;
    loop {
        // A connection that was passed on is the only one.
        let stream = connected(name, path).map_err(|error| busy.take().unwrap_or(error))?;
        let mut client = Client { stream, is_running: false, gone: None };
        let file = file.try_clone_to_owned().map_err(|error| Error::os(format!("xdp:{name}"), error))?;
        let (answer, sockets) = client.ask(wanted, file).map_err(|error| {
            let place = path.display();
            Error::Gone(format!("xdp:{name}: the process that serves {place} has not answered: {error}"))
        })?;
        let Answer { mac, mtu, is_running, ways, verdict } = answer;
        match verdict {
            Verdict::Granted(notes) if sockets.len() == wanted.queues => {
                client.is_running = is_running;
                let map = |fd| Socket::map(fd, wanted.rings);
                let sockets = sockets.into_iter().map(map).collect::<io::Result<_>>().map_err(|error| {
                    match Errno::from_io_error(&error) {
                        Some(Errno::BUSY) => Error::Unsupported(format!(
                            "xdp:{name}: this kernel does not pass XDP sockets on (Linux 6.4 does); leave socket= out"
                        )),
                        _ => wrong(name, "mapping the rings of a socket")(error),
                    }
                })?;
                let notes = notes.lines().map(str::to_owned).collect();
                return Ok(Granted { mac, mtu: mtu as usize, ways, sockets, notes, control: Box::new(client) });
            }
            Verdict::Granted(_) => {
                return Err(Error::Fault(format!("xdp:{name}: the wrong number of sockets has come")));
            }
            Verdict::Busy(why) if start.elapsed() < BUSY => {
                busy = Some(Error::Busy(format!("xdp:{name}: {why}")));
                std::thread::sleep(Duration::from_millis(50));
                check_interrupt().map_err(|error| Error::os(format!("xdp:{name}"), error))?;
            }
            Verdict::Busy(why) => return Err(Error::Busy(format!("xdp:{name}: {why}"))),
            Verdict::Refused(why) => return Err(config(why)),
        }
    }
}

/// Connects to a process of this user or of root: others are not trusted with this process's memory.
fn connected(name: &str, path: &Path) -> Result<Stream, Error> {
    let place = path.display();
    let start = Instant::now();
    loop {
        match connect(path).map_err(|error| Error::Fault(format!("xdp:{name}: {error}")))? {
            Connecting::Connected(socket) => {
                let peer = Credentials::of_peer(&socket).map_err(|error| Error::os(format!("xdp:{name}"), error))?;
                if !peer.is_own_or_root() {
                    let user = peer.uid;
                    return Err(Error::Permission(format!(
                        "xdp:{name}: {place} is served by user {user}, who is neither this user nor root; take another path"
                    )));
                }
                return Ok(Stream::new(socket, 2 * Answer::LEN, Descriptors::Trusted));
            }
            Connecting::Queued if start.elapsed() < BUSY => {
                check_interrupt().map_err(|error| Error::os(format!("xdp:{name}"), error))?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Connecting::Queued => return Err(Error::Busy(format!("xdp:{name}: {place} lets nobody in"))),
            Connecting::Refused(Errno::ACCESS) => {
                return Err(Error::Permission(format!(
                    "xdp:{name}: {place} belongs to others; have it served with ',group=…' or ',mode=…'"
                )));
            }
            Connecting::Refused(_) => {
                return Err(Error::NotFound(format!(
                    "xdp:{name}: nobody serves {place}; as root: ringpass xdp attach {name} --socket {place}"
                )));
            }
        }
    }
}

impl Client {
    fn ask(&mut self, wanted: &Wanted, file: OwnedFd) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let lost = |lost: ConnectionLost| io::Error::other(lost.describe("it"));
        match self.stream.send(Ask::new(wanted).bytes(), vec![file]) {
            // It may have sent a reason before it closed the connection.
            Ok(()) | Err(ConnectionLost::Closed) => {}
            Err(error) => return Err(lost(error)),
        }
        let start = Instant::now();
        loop {
            if let Some(bytes) = self.stream.arrived().first_chunk() {
                let answer = Answer::parse(bytes).ok_or(io::ErrorKind::InvalidData)?;
                return Ok((answer, self.stream.take(Answer::LEN).1));
            }
            if self.stream.receive().map_err(lost)? == ReadStatus::WouldBlock {
                let left = ANSWER_TIMEOUT.checked_sub(start.elapsed()).ok_or(io::ErrorKind::TimedOut)?;
                wait_ready(self.stream.socket(), PollFlags::IN, left)?;
                self.stream.flush().map_err(lost)?;
            }
        }
    }

    /// Takes in what was told, which is little: a message for each change.
    fn listen(&mut self) {
        const MOST: usize = 64;
        for _ in 0..MOST {
            if let Some(tell) = self.stream.arrived().first_chunk().map(Tell::parse) {
                self.stream.take(Tell::LEN);
                match tell {
                    Some(Tell::Running(running)) => self.is_running = running,
                    Some(Tell::Promiscuous(_)) | None => {}
                }
                continue;
            }
            match self.stream.receive() {
                Ok(ReadStatus::WouldBlock) => return,
                Ok(_) => {}
                Err(_) => {
                    self.is_running = false;
                    self.gone.get_or_insert_with(|| "the process that has attached the program has ended".into());
                    return;
                }
            }
        }
    }
}

impl Control for Client {
    fn is_running(&mut self) -> bool {
        self.listen();
        self.is_running
    }

    fn gone(&mut self) -> Option<String> {
        self.listen();
        self.gone.clone()
    }

    fn set_promiscuous(&mut self, on: bool) -> io::Result<()> {
        let sent = self.stream.flush().and_then(|()| match self.stream.has_unsent() {
            true => Err(ConnectionLost::RepliesUnread),
            false => self.stream.send(Tell::Promiscuous(on).bytes(), Vec::new()),
        });
        sent.map_err(|lost| io::Error::other(lost.describe("who has attached the program")))
    }
}
