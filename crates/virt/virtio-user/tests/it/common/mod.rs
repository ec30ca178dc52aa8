//! A minimal back-end, which keeps to the protocol as far as its test lets it.

#![allow(dead_code)] // Each test file uses only a part.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringpass_ipc::{Descriptors, ReadStatus, Stream};
use ringpass_memory::{Mempool, MempoolConfig};
use ringpass_port::{Role, VirtioUserConfig};
use ringpass_vhost_user::{Command, HEADER, Header, InflightArea, Kind, Reply, Request};
use ringpass_vhost_user::{VringAddr, features as protocol};
use ringpass_virtio::features::{EVENT_IDX, INDIRECT_DESC, MTU, RING_PACKED, VERSION_1};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

pub const FEATURES: u64 =
    VERSION_1 | RING_PACKED | INDIRECT_DESC | EVENT_IDX | MTU | ringpass_vhost_user::features::PROTOCOL_FEATURES;
pub const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::NET_MTU | protocol::INFLIGHT_SHMFD;

/// How long the front-end may keep the back-end waiting.
const LIMIT: Duration = Duration::from_secs(20);

/// A reply, honest or falsified.
#[derive(Clone, Debug)]
pub struct Answer {
    pub bytes: Vec<u8>,
    pub fds: usize,
}

/// Socket at which a back-end listens.
pub struct Place {
    pub listener: UnixListener,
    pub config: VirtioUserConfig,
    _folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("vhost");
        let listener = UnixListener::bind(&path).unwrap();
        let config = VirtioUserConfig::new(path, Role::Connect);
        Self { listener, config, _folder: folder }
    }

    /// Accepts the next session.
    pub fn accept(&self) -> Peer {
        let (socket, _) = self.listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let offer = (FEATURES, PROTOCOL, 1);
        Peer {
            stream: Stream::new(socket.into(), 1 << 16, Descriptors::Trusted),
            offer,
            rings: Vec::new(),
            inflight: 0,
            fds: Vec::new(),
        }
    }
}

/// The back-end's end of a session.
pub struct Peer {
    pub stream: Stream,
    /// Features, protocol features and number of queue pairs that it offers.
    pub offer: (u64, u64, u64),
    /// Parameters of the rings by index, as far as they have been sent.
    pub rings: Vec<PeerRing>,
    /// How many inflight areas were created.
    pub inflight: usize,
    /// All descriptors that have arrived, with the commands they came with.
    pub fds: Vec<(Command, OwnedFd)>,
}

#[derive(Clone, Debug, Default)]
pub struct PeerRing {
    pub size: u32,
    pub base: u32,
    pub at: Option<VringAddr>,
    pub enabled: bool,
}

/// Creates a descriptor of no use.
pub fn descriptor() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

impl Peer {
    /// Receives the next request; `None` at the end of the session.
    pub fn request(&mut self) -> Option<(Request, Kind, Vec<OwnedFd>)> {
        let start = Instant::now();
        loop {
            let arrived = self.stream.arrived();
            if let Some(header) = arrived.first_chunk::<HEADER>() {
                let header = Header::parse(header).expect("a header");
                let size = HEADER + header.size as usize;
                if size <= arrived.len() {
                    let (all, fds) = self.stream.take(size);
                    let payload = &self.stream.bytes(all)[HEADER..];
                    let request = Request::parse(header.command, payload).expect("a request that makes sense");
                    return Some((request, header.kind, fds));
                }
            }
            match self.stream.receive() {
                Ok(ReadStatus::Data) => {}
                Ok(ReadStatus::WouldBlock) => {
                    assert!(start.elapsed() < LIMIT, "the front-end says nothing and does not go");
                    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
                    let _ = poll(&mut [PollFd::from_borrowed_fd(self.stream.socket(), PollFlags::IN)], Some(&second));
                }
                Err(_) => return None,
            }
        }
    }

    fn ring(&mut self, index: u32) -> &mut PeerRing {
        let index = index as usize;
        assert!(index < 256);
        self.rings.resize(self.rings.len().max(index + 1), PeerRing::default());
        &mut self.rings[index]
    }

    /// Carries out a request and returns the honest reply, if there is one.
    pub fn honest(&mut self, request: &Request, kind: Kind) -> Option<Answer> {
        let (features, protocol, pairs) = self.offer;
        let mut fds = 0;
        let reply = match *request {
            Request::GetFeatures => Reply::Number(features),
            Request::GetProtocolFeatures => Reply::Number(protocol),
            Request::GetQueueNum => Reply::Number(pairs),
            Request::GetVringBase { index } => Reply::VringBase { index, base: self.ring(index).base },
            Request::GetInflightFd(area) => {
                (fds, self.inflight) = (1, self.inflight + 1);
                Reply::Inflight(InflightArea { size: 4096, ..area })
            }
            _ if kind == Kind::NeedsReply => Reply::Number(0),
            _ => {
                self.note(request);
                return None;
            }
        };
        self.note(request);
        let payload = reply.to_bytes();
        let header = Header { command: request.command() as u32, kind: Kind::Reply, size: payload.len() as u32 };
        Some(Answer { bytes: [&header.to_bytes()[..], &payload].concat(), fds })
    }

    fn note(&mut self, request: &Request) {
        match *request {
            Request::SetVringNum { index, num } => self.ring(index).size = num,
            Request::SetVringBase { index, base } => self.ring(index).base = base,
            Request::SetVringAddr(at) => self.ring(at.index).at = Some(at),
            Request::SetVringEnable { index, on } => self.ring(index).enabled = on,
            _ => {}
        }
    }

    pub fn answer(&mut self, answer: Answer) {
        let fds = (0..answer.fds).map(|_| descriptor()).collect();
        let _ = self.stream.send(answer.bytes, fds);
    }

    /// Serves honestly until a request for which `last` holds was answered. Returns `false` if the session ends
    /// before.
    pub fn serve(&mut self, last: impl Fn(&Request) -> bool) -> bool {
        while let Some((request, kind, fds)) = self.request() {
            self.fds.extend(fds.into_iter().map(|fd| (request.command(), fd)));
            if let Some(answer) = self.honest(&request, kind) {
                self.answer(answer);
            }
            if last(&request) {
                return true;
            }
        }
        false
    }

    /// Serves until both rings of a pair have been started.
    pub fn bring_up(&mut self) -> bool {
        let up = self.serve(|request| matches!(request, Request::SetVringKick(ring) if ring.index == 1));
        assert!(!up || self.rings.iter().all(|ring| ring.enabled), "what is sent would be thrown away");
        up
    }

    /// Serves until the front-end disconnects.
    pub fn serve_out(&mut self) {
        self.serve(|_| false);
    }

    /// Returns the descriptors that came with a command.
    pub fn of(&self, command: Command) -> Vec<&OwnedFd> {
        self.fds.iter().filter(|(with, _)| *with == command).map(|(_, fd)| fd).collect()
    }
}

pub fn pool() -> Mempool {
    Mempool::new(&MempoolConfig { buffers: 2048, ..Default::default() }).unwrap()
}

/// Returns the number of descriptors that this process has open.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
