//! A device for tests, a server for it that is polled by hand, and a client that sends arbitrary bytes.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringpass_memory::{DmaMap, DmaMapError, Memory};
pub use ringpass_testing::{event, memfd, resources, send};
use ringpass_vfio_user::*;

pub const PAGE: u64 = 4096;
pub const VECTORS: u32 = 20;
pub const LIMIT: Duration = Duration::from_secs(10);

/// A device with one page of registers, and doorbells in a region after the standard ones.
pub struct MockDevice {
    pub config: ConfigSpace,
    pub registers: [u8; 4096],
    pub dma: DmaMap,
    /// The mapped memory, until a part of it is unmapped.
    pub maps: Vec<(u64, Memory)>,
    pub vectors: Vec<Option<EventNotifier>>,
    pub resets: u32,
    /// Duration of a write.
    pub pause: Duration,
    doorbells: Doorbells,
    cells: OwnedFd,
    doorbell: OwnedFd,
}

impl MockDevice {
    pub fn new() -> Self {
        let identity =
            Identity { vendor: 0x8086, device: 0x10fb, subsystem: (0x8086, 1), revision: 1, class: 0x02_0000 };
        let cells = DoorbellArray { register: [0x100, 4, 8], cell: [0, 64] };
        Self {
            config: ConfigSpace::new(&identity).memory_bar(0, 4096).msix(0x70, VECTORS as u16, (4, 0), (4, 2048)),
            registers: [0; 4096],
            dma: DmaMap::default(),
            maps: Vec::new(),
            vectors: (0..VECTORS).map(|_| None).collect(),
            resets: 0,
            pause: Duration::ZERO,
            doorbells: Doorbells { asleep: 1024, cells: vec![cells] },
            cells: memfd(PAGE),
            doorbell: event(),
        }
    }

    /// Reads and writes all memory that the device may access.
    pub fn touch(&self) {
        for (_, memory) in &self.maps {
            for at in (0..memory.len()).step_by(PAGE as usize) {
                let [value] = memory.raw(at, 1).unwrap().array(0).unwrap();
                assert!(memory.write(at, &[value.wrapping_add(1)]));
            }
        }
    }

    /// Returns whether the device is as after power-on and holds nothing of a client.
    pub fn is_fresh(&self) -> bool {
        self.dma.is_empty()
            && self.maps.is_empty()
            && self.vectors.iter().all(Option::is_none)
            && self.registers == [0; 4096]
    }
}

impl Device for MockDevice {
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
                doorbells: Some((&self.doorbells, self.doorbell.as_fd())),
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

    fn set_vector(&mut self, vector: u32, event: Option<EventNotifier>) {
        self.vectors[vector as usize] = event;
    }

    fn map(&mut self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        self.dma.insert(iova, memory.clone(), access)?;
        self.maps.push((iova, memory));
        Ok(())
    }

    fn unmap(&mut self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        self.dma.remove(iova, len)?;
        let last = iova + (len - 1);
        self.maps.retain(|(start, memory)| *start > last || start + (memory.len() as u64 - 1) < iova);
        Ok(())
    }

    fn reset(&mut self) {
        self.registers = [0; 4096];
        self.config.reset();
        self.resets += 1;
    }
}

/// A server for the mock device, with a folder of its own.
pub struct Bench {
    pub server: Server<MockDevice>,
    pub path: PathBuf,
    pub events: Vec<Event>,
    _folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        let server = Server::new(Listener::bind(&path).unwrap(), MockDevice::new());
        Self { server, path, events: Vec::new(), _folder: folder }
    }

    /// Polls the server until a condition holds.
    pub fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < LIMIT, "{what} within {LIMIT:?}; so far {:?}", self.events);
            let events = &mut self.events;
            self.server.poll_once(&mut |event| events.push(event));
        }
    }

    /// Polls the server while a client runs on another thread.
    pub fn during<R: Send>(&mut self, client: impl FnOnce(&PathBuf) -> R + Send) -> R {
        let path = self.path.clone();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| client(&path));
            while !thread.is_finished() {
                let events = &mut self.events;
                if self.server.poll_once(&mut |event| events.push(event)) == 0 {
                    std::thread::yield_now();
                }
            }
            thread.join().unwrap()
        })
    }

    /// Waits for the end of the session and returns its reason. Checks that nothing of the client is left.
    pub fn ended(&mut self) -> Ended {
        self.until("an end", |bench| bench.events.iter().any(|event| matches!(event, Event::Ended(_))));
        assert!(!self.server.connected() && self.server.device.is_fresh(), "something is left of the client");
        let mut reasons = std::mem::take(&mut self.events).into_iter().filter_map(|event| match event {
            Event::Ended(reason) => Some(reason),
            _ => None,
        });
        reasons.next().unwrap()
    }

    /// Waits for a refusal, and checks that the session continues.
    pub fn refused(&mut self) {
        self.until("a refusal", |bench| bench.events.iter().any(|event| matches!(event, Event::Refused(_))));
        assert!(self.server.connected());
        self.events.clear();
    }

    /// Checks that a well-behaved client is served as the first one was.
    pub fn serves_a_good_client(&mut self) {
        self.until("room", |bench| !bench.server.connected());
        self.during(|path| good_client(&mut Client::connect(path, LIMIT).unwrap()));
        self.ended();
    }
}

/// Uses the device as a driver does.
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

/// A client that sends arbitrary bytes.
pub struct Raw(pub UnixStream);

impl Raw {
    /// Connects without sending anything.
    pub fn connect(bench: &mut Bench) -> Self {
        let stream = UnixStream::connect(&bench.path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        bench.until("a connection", |bench| bench.server.connected());
        Self(stream)
    }

    /// Connects and negotiates the version.
    pub fn greet(bench: &mut Bench) -> Self {
        let mut raw = Self::connect(bench);
        raw.send(&message(1, &[0, 0, 1, 0]), &[]);
        bench.server.poll_once(&mut |_| {});
        assert_eq!(raw.reply().0, 0);
        raw
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        assert_eq!(send(&self.0, bytes, fds), Ok(bytes.len()));
    }

    /// Returns the error number and the body of the next reply.
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

/// Builds a message from the number of its command.
pub fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let size = (HEADER + body.len()) as u32;
    [&Header { id: 1, command, size, kind: Kind::Command, error: 0 }.to_bytes(), body].concat()
}

pub fn request(request: &Request<'_>) -> Vec<u8> {
    message(request.command() as u16, &request.to_bytes())
}
