//! A device for tests, a server of it that is stepped by hand, and a client that sends what it likes.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass_memory::ForeignMemory;
use ringpass_vfio_user::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

pub const PAGE: u64 = 4096;
pub const VECTORS: u32 = 20;
pub const LIMIT: Duration = Duration::from_secs(10);

pub fn memfd(len: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// A device of one page of registers, with doorbells behind the standard regions.
pub struct Toy {
    pub config: ConfigSpace,
    pub registers: [u8; 4096],
    pub maps: Vec<(u64, Arc<ForeignMemory>, usize, usize)>,
    pub vectors: Vec<Option<Signal>>,
    pub resets: u32,
    /// How long a write takes.
    pub pause: Duration,
    doorbells: Doorbells,
    cells: OwnedFd,
    bell: OwnedFd,
}

impl Toy {
    pub fn new() -> Self {
        let identity =
            Identity { vendor: 0x8086, device: 0x10fb, subsystem: (0x8086, 1), revision: 1, class: 0x02_0000 };
        let cells = Cells { register: [0x100, 4, 8], cell: [0, 64] };
        Self {
            config: ConfigSpace::new(&identity).memory_bar(0, 4096).msix(0x70, VECTORS as u16, (4, 0), (4, 2048)),
            registers: [0; 4096],
            maps: Vec::new(),
            vectors: (0..VECTORS).map(|_| None).collect(),
            resets: 0,
            pause: Duration::ZERO,
            doorbells: Doorbells { asleep: 1024, cells: vec![cells] },
            cells: memfd(PAGE),
            bell: event(),
        }
    }

    /// All memory that it may access, read and written.
    pub fn touch(&self) {
        for (_, memory, offset, len) in &self.maps {
            for at in (*offset..offset + len).step_by(PAGE as usize) {
                assert!(at < memory.len());
                // SAFETY: inside the memory, as just checked.
                unsafe {
                    let value = memory.as_ptr().add(at).read_volatile();
                    memory.as_ptr().add(at).write_volatile(value.wrapping_add(1));
                }
            }
        }
    }

    /// As after power-on, and nothing of a client's left.
    pub fn is_fresh(&self) -> bool {
        self.maps.is_empty() && self.vectors.iter().all(Option::is_none) && self.registers == [0; 4096]
    }
}

impl Device for Toy {
    fn regions(&self) -> u32 {
        PCI_REGIONS + 1
    }

    fn region(&self, index: u32) -> Region<'_> {
        match index {
            0 => Region { size: PAGE, readable: true, writable: true, ..Region::default() },
            1 => Region { size: PAGE, readable: true, ..Region::default() },
            CONFIG_REGION => Region { size: ConfigSpace::SIZE, readable: true, writable: true, ..Region::default() },
            PCI_REGIONS => Region {
                size: PAGE,
                mapping: Some(Mapping { file: self.cells.as_fd(), offset: 0, areas: &[] }),
                doorbells: Some((&self.doorbells, self.bell.as_fd())),
                ..Region::default()
            },
            _ => Region::default(),
        }
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        match region {
            CONFIG_REGION => self.config.read(offset, out),
            _ => out.copy_from_slice(&self.registers[offset as usize..offset as usize + out.len()]),
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        std::thread::sleep(self.pause);
        match region {
            0 => self.registers[offset as usize..offset as usize + data.len()].copy_from_slice(data),
            _ => _ = self.config.write(offset, data),
        }
    }

    fn vectors(&self) -> u32 {
        VECTORS
    }

    fn set_vector(&mut self, vector: u32, event: Option<Signal>) {
        self.vectors[vector as usize] = event;
    }

    fn map(
        &mut self,
        iova: u64,
        memory: &Arc<ForeignMemory>,
        offset: usize,
        len: usize,
        _access: Access,
    ) -> Result<(), Refusal> {
        self.maps.push((iova, memory.clone(), offset, len));
        Ok(())
    }

    fn unmap(&mut self, iova: u64, len: u64) {
        let last = iova + (len - 1);
        self.maps.retain(|&(start, _, _, len)| start > last || start + (len as u64 - 1) < iova);
    }

    fn reset(&mut self) {
        self.registers = [0; 4096];
        self.config.reset();
        self.resets += 1;
    }
}

/// A server of the toy in a folder of its own.
pub struct Bench {
    pub server: Server<Toy>,
    pub path: PathBuf,
    pub events: Vec<Event>,
    _folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        let server = Server::new(Listener::bind(&path).unwrap(), Toy::new());
        Self { server, path, events: Vec::new(), _folder: folder }
    }

    /// Turns until a condition holds.
    pub fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < LIMIT, "{what} within {LIMIT:?}; so far {:?}", self.events);
            let events = &mut self.events;
            self.server.turn(&mut |event| events.push(event));
        }
    }

    /// Turns while a client does something on another thread.
    pub fn during<R: Send>(&mut self, client: impl FnOnce(&PathBuf) -> R + Send) -> R {
        let path = self.path.clone();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| client(&path));
            while !thread.is_finished() {
                let events = &mut self.events;
                if self.server.turn(&mut |event| events.push(event)) == 0 {
                    std::thread::yield_now();
                }
            }
            thread.join().unwrap()
        })
    }

    /// Waits for the end of the session and returns its reason; nothing of the client's is left.
    pub fn ended(&mut self) -> Ended {
        self.until("an end", |bench| bench.events.iter().any(|event| matches!(event, Event::Ended(_))));
        assert!(!self.server.connected() && self.server.device.is_fresh(), "something is left of the client");
        let mut reasons = std::mem::take(&mut self.events).into_iter().filter_map(|event| match event {
            Event::Ended(reason) => Some(reason),
            _ => None,
        });
        reasons.next().unwrap()
    }

    /// The session goes on, and something was refused.
    pub fn refused(&mut self) {
        self.until("a refusal", |bench| bench.events.iter().any(|event| matches!(event, Event::Refused(_))));
        assert!(self.server.connected());
        self.events.clear();
    }

    /// A client that behaves is served as the first one was.
    pub fn serves_a_good_client(&mut self) {
        self.until("room", |bench| !bench.server.connected());
        self.during(|path| good_client(&mut Client::connect(path, LIMIT).unwrap()));
        self.ended();
    }
}

/// What a driver does.
pub fn good_client(client: &mut Client) {
    let mut word = [0; 4];
    client.write(0, 8, &7u32.to_ne_bytes()).unwrap();
    client.read(0, 8, &mut word).unwrap();
    assert_eq!(u32::from_ne_bytes(word), 7);
    let memory = memfd(4 * PAGE);
    client.dma_map(0x1000, 2 * PAGE, (memory.as_fd(), PAGE), Access::ReadWrite).unwrap();
    client.set_vectors(MSIX, &[event(), event()]).unwrap();
    client.dma_unmap(0x1000, 2 * PAGE).unwrap();
}

/// A client that sends what it likes.
pub struct Raw(pub UnixStream);

impl Raw {
    /// Connected, and nothing said.
    pub fn connect(bench: &mut Bench) -> Self {
        let stream = UnixStream::connect(&bench.path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        bench.until("a connection", |bench| bench.server.connected());
        Self(stream)
    }

    /// Connected, and versions exchanged.
    pub fn greet(bench: &mut Bench) -> Self {
        let mut raw = Self::connect(bench);
        raw.send(&message(1, &[0, 0, 1, 0]), &[]);
        bench.server.turn(&mut |_| {});
        assert_eq!(raw.reply().0, 0);
        raw
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![MaybeUninit::uninit(); 4096];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let sent = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// The next reply: its error and its body.
    pub fn reply(&mut self) -> (u32, Vec<u8>) {
        let mut header = [0; HEADER];
        self.0.read_exact(&mut header).unwrap();
        let header = Header::parse(&header).unwrap();
        let mut body = vec![0; header.size as usize - HEADER];
        self.0.read_exact(&mut body).unwrap();
        assert!(matches!(header.kind, Kind::Reply | Kind::Error));
        (if header.kind == Kind::Error { header.error } else { 0 }, body)
    }
}

/// A message by the number of its command.
pub fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let size = (HEADER + body.len()) as u32;
    [&Header { id: 1, command, size, kind: Kind::Command, error: 0 }.to_bytes(), body].concat()
}

pub fn request(request: &Request<'_>) -> Vec<u8> {
    message(request.command() as u16, &request.to_bytes())
}

/// File descriptors and mappings of this process.
pub fn resources() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (fds, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}
