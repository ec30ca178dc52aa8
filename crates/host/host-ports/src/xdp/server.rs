//! Grants sockets on an interface to processes that may not attach programs themselves.
//!
//! The sockets are bound here, to this interface and the peer's memory, before the peer gets them: with one that is not bound it could take any
//! other interface. They end with the peer, which is not trusted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringpass_ipc::{AcceptWait, ConnectionLost, Credentials, Descriptors, Listener, MessageLoop, Stream};
use ringpass_memory::ForeignMemory;
use ringpass_port::{Error, XdpConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::attached::Attached;
use super::messages::{Answer, Ask, MAX_QUEUES, Tell, Verdict};
use super::{Control, Wanted, Ways, hints};

/// Time for whatever a peer owes: its question, the rest of a message, or reading what it is told.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages of a peer in a turn: none is looked at after one that was refused.
const MESSAGES: usize = 1;
/// Interval at which the interface is looked at for a peer.
const LOOK: Duration = Duration::from_millis(200);
/// Time within which the kernel frees the queue of a closed socket.
const FREED: Duration = Duration::from_secs(1);

/// An interface with a program, whose frames go to one peer at a time.
pub struct XdpServer {
    attached: Attached,
    listener: Listener,
    queues: usize,
    /// Most bytes of a peer's memory, which the kernel keeps present as long as the peer has sockets.
    memory: u64,
    peer: Option<Peer>,
    looked: Instant,
}

struct Peer {
    messages: MessageLoop,
    name: String,
    is_granted: bool,
    /// What it was told about the interface.
    told_running: bool,
}

/// What has happened, for users to see.
#[derive(Debug)]
pub enum XdpServerEvent {
    /// A peer has got the interface's frames.
    Granted(String),
    /// A peer has got no sockets.
    Refused(String),
    /// A peer is gone; the kernel has the interface's frames.
    Ended(String),
}

impl XdpServer {
    /// Attaches a program to an interface. `queues` is the most that a peer may have; `memory` the most bytes of its packets.
    ///
    /// # Errors
    /// Those of [`Xdp::open`](super::Xdp::open) that have to do with the interface.
    pub fn new(config: &XdpConfig, queues: usize, memory: u64, listener: Listener) -> Result<Self, Error> {
        if config.socket.is_some() || config.timestamps || !(1..=MAX_QUEUES).contains(&queues) {
            let what =
                format!("1 to {MAX_QUEUES} queues of an interface of this machine, without socket= and timestamps");
            return Err(Error::Config(format!("xdp:{}: {what}", config.interface)));
        }
        let attached = Attached::new(config, queues, hints::Wanted::default())?;
        Ok(Self { attached, listener, queues, memory, peer: None, looked: Instant::now() })
    }

    /// Whether the interface was deleted, which is the end.
    pub fn gone(&mut self) -> Option<String> {
        self.attached.gone()
    }

    /// Serves peers for about this time, or until something has happened. Call it again and again.
    ///
    /// # Errors
    /// The kernel's, when nothing can be waited for.
    pub fn poll_once(&mut self, limit: Duration, log: &mut dyn FnMut(XdpServerEvent)) -> Result<(), Errno> {
        self.wait(limit.min(LOOK))?;
        while let Some(socket) = self.listener.accept(|_, _| {}) {
            let name = Credentials::of_peer(&socket).map_or_else(|_| "a process".into(), |peer| peer.to_string());
            if let Some(other) = &self.peer {
                let why = format!("{} has the interface's frames; end it first", other.name);
                let answer = Answer::without_sockets(Verdict::Busy(why));
                let _ = Stream::new(socket, Ask::LEN, Descriptors::Refused).send(answer.bytes(), Vec::new());
                continue;
            }
            let stream = Stream::new(socket, 4 * Ask::LEN, Descriptors::Checked);
            let messages = MessageLoop::new(stream, PEER_TIMEOUT);
            self.peer = Some(Peer { messages, name, is_granted: false, told_running: false });
        }
        if let Some(mut peer) = self.peer.take() {
            match self.serve(&mut peer, log) {
                Ok(goes_on) => self.peer = goes_on.then_some(peer),
                Err(lost) => {
                    let why = format!("{}: {}", peer.name, lost.describe("it"));
                    let event = if peer.is_granted { XdpServerEvent::Ended } else { XdpServerEvent::Refused };
                    // Its sockets are closed with it, unless it has passed them on.
                    self.attached.clear(self.queues);
                    let _ = self.attached.set_promiscuous(false);
                    log(event(why));
                }
            }
        }
        Ok(())
    }

    fn wait(&self, limit: Duration) -> Result<(), Errno> {
        let mut limit = limit;
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        match self.listener.wait_on() {
            AcceptWait::Readable(socket) => fds.push(PollFd::from_borrowed_fd(socket, PollFlags::IN)),
            AcceptWait::Pause(time) => limit = limit.min(time),
        }
        if let Some(peer) = &self.peer {
            let (socket, events): (BorrowedFd<'_>, PollFlags) = peer.messages.wait_on();
            fds.push(PollFd::from_borrowed_fd(socket, events));
        }
        let limit = Timespec::try_from(limit).expect("a short time");
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Serves a peer; returns whether it goes on, and not if it was refused.
    fn serve(&mut self, peer: &mut Peer, log: &mut dyn FnMut(XdpServerEvent)) -> Result<bool, ConnectionLost> {
        let mut goes_on = true;
        let looks = peer.is_granted && self.looked.elapsed() >= LOOK;
        let running = looks.then(|| self.attached.is_running());
        let Peer { messages, name, is_granted, told_running } = peer;
        let mut news = running.filter(|running| running != told_running);
        messages.handle(MESSAGES, |stream| {
            if let Some(running) = news.take() {
                *told_running = running;
                stream.send(Tell::Running(running).bytes(), Vec::new())?;
                return Ok(true);
            }
            if *is_granted {
                let Some(tell) = stream.arrived().first_chunk().map(Tell::parse) else { return Ok(false) };
                stream.take(Tell::LEN);
                let Some(Tell::Promiscuous(on)) = tell else { return Err(ConnectionLost::Truncated) };
                let _ = self.attached.set_promiscuous(on);
                return Ok(true);
            }
            let Some(bytes) = stream.arrived().first_chunk().copied() else { return Ok(false) };
            let (_, files) = stream.take(Ask::LEN);
            let ask = Ask::parse(&bytes).map_err(|why| Verdict::Refused(why.into()));
            match ask.and_then(|ask| self.grant(&ask, files)) {
                Ok((answer, sockets)) => {
                    (*is_granted, *told_running) = (true, answer.is_running);
                    stream.send(answer.bytes(), sockets)?;
                    log(XdpServerEvent::Granted(name.clone()));
                }
                Err(verdict) => {
                    goes_on = false;
                    if let Verdict::Refused(why) = &verdict {
                        log(XdpServerEvent::Refused(format!("{name}: {why}")));
                    }
                    stream.send(Answer::without_sockets(verdict).bytes(), Vec::new())?;
                }
            }
            Ok(true)
        })?;
        if looks {
            self.looked = Instant::now();
        }
        Ok(goes_on)
    }

    /// Opens sockets on a peer's memory.
    fn grant(&mut self, ask: &Ask, files: Vec<OwnedFd>) -> Result<(Answer, Vec<OwnedFd>), Verdict> {
        let refused = |why: &str| Verdict::Refused(why.into());
        let prefix = format!("xdp:{}: ", self.attached.name());
        let failed = |error: Error| {
            // The peer names the port itself.
            let text = error.to_string();
            let why = text.strip_prefix(&prefix).unwrap_or(&text).to_owned();
            if matches!(error, Error::Busy(_)) { Verdict::Busy(why) } else { Verdict::Refused(why) }
        };
        if ask.queues as usize > self.queues {
            let (most, wanted) = (self.queues, ask.queues);
            let why = format!("{most} queue(s) are granted, not {wanted}; attach it with --queues {wanted}");
            return Err(Verdict::Refused(why));
        }
        if ask.len > self.memory {
            let (most, wanted) = (self.memory >> 20, ask.len.div_ceil(1 << 20));
            let why = format!("{most} MiB of packets are granted, not {wanted}; attach it with --memory {wanted}M");
            return Err(Verdict::Refused(why));
        }
        let [file] = &files[..] else { return Err(refused("no memory for packets has come")) };
        let memory = ForeignMemory::map(file.as_fd(), 0, ask.len as usize);
        let memory = memory.map_err(|error| refused(&error.to_string()))?;
        let wanted: Wanted = ask.wanted(memory.as_ptr() as u64).map_err(refused)?;
        // From here on the kernel holds the pages, whatever becomes of the file.
        let (sockets, ways) = self.bind(&wanted).map_err(failed)?;
        let notes = self.attached.notes(&sockets).map_err(failed)?;
        let mtu = self.attached.mtu().map_err(failed)?;
        let is_running = self.attached.is_running();
        let answer = Answer {
            mac: self.attached.mac(),
            mtu: mtu as u32,
            is_running,
            ways,
            verdict: Verdict::Granted(notes.join("\n")),
        };
        Ok((answer, sockets))
    }

    /// Binds sockets. The kernel frees a queue a moment after the socket of the last peer was closed; meanwhile nobody else is served, as there is one peer at a
    /// time.
    fn bind(&mut self, wanted: &Wanted) -> Result<(Vec<OwnedFd>, Ways), Error> {
        let start = Instant::now();
        loop {
            match self.attached.bind(wanted, Ok) {
                Err(Error::Busy(_)) if start.elapsed() < FREED => std::thread::sleep(Duration::from_millis(5)),
                bound => return bound,
            }
        }
    }
}
