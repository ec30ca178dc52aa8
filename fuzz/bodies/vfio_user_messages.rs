//! Fuzz body: an arbitrary vfio-user client. The first byte is a set of flags, the rest is the client's messages. A
//! message's id, which means nothing to the server, selects the file descriptors that come with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use ringpass_memory::{DmaMap, DmaMapError, Memory};
use ringpass_testing::{memfd, runs_over_a_socket, send, wait_for};
use ringpass_vfio_user::*;
use rustix::event::{EventfdFlags, eventfd};

/// Flag: versions are exchanged before the case begins.
const GREETED: u8 = 1;
/// Files whose descriptors a client sends.
struct Files([OwnedFd; 4]);

impl Files {
    fn new() -> Self {
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let (reader, _) = rustix::pipe::pipe().expect("a pipe");
        let socket = UnixStream::pair().expect("a socket").0.into();
        Self([memfd(64 << 10), event, reader, socket])
    }

    /// Returns the descriptors that go with a message.
    fn of(&self, id: u16) -> impl Iterator<Item = BorrowedFd<'_>> {
        let file = &self.0[usize::from(id >> 5 & 3)];
        (0..id & 0x1f).map(|_| file.as_fd())
    }
}

thread_local! {
    static FILES: Files = Files::new();
}

/// A mock device that checks its server's promises and its own map, against a plain list.
#[derive(Default)]
struct MockDevice {
    dma: DmaMap,
    maps: Vec<(u64, u64)>,
    vectors: u32,
}

impl Device for MockDevice {
    fn region(&self, index: u32) -> Region<'_> {
        let size = [4096, 0, 64 << 10, 1 << 40][index as usize % 4];
        Region { size, readable: index != 2, writable: index != 3, ..Region::default() }
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        assert!(!out.is_empty() && out.len() <= MAX_TRANSFER && offset + out.len() as u64 <= self.region(region).size);
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        assert!(!data.is_empty() && offset + data.len() as u64 <= self.region(region).size);
    }

    fn vectors(&self) -> u32 {
        8
    }

    fn set_vector(&mut self, vector: u32, event: Option<EventNotifier>) {
        assert!(vector < 8);
        let bit = 1 << vector;
        self.vectors = if event.is_some() { self.vectors | bit } else { self.vectors & !bit };
    }

    fn map(&mut self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        let last = iova.checked_add(memory.len() as u64 - 1).expect("it does not wrap");
        self.dma.insert(iova, memory.clone(), access)?;
        assert!(self.maps.iter().all(|&(start, end)| last < start || end < iova), "it overlaps none");
        assert!(memory.read(memory.len() - 1, &mut [0]));
        self.maps.push((iova, last));
        Ok(())
    }

    fn unmap(&mut self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        let last = iova.checked_add(len - 1).expect("it does not wrap");
        self.dma.remove(iova, len)?;
        let maps = std::mem::take(&mut self.maps);
        for (start, end) in maps {
            // Parts outside of the range stay mapped.
            if start < iova {
                self.maps.push((start, end.min(iova - 1)));
            }
            if end > last {
                self.maps.push((start.max(last + 1), end));
            }
        }
        assert_eq!(self.dma.len(), self.maps.len());
        Ok(())
    }

    fn reset(&mut self) {}
}

/// Runs one case.
pub fn case(data: &[u8]) {
    let Some((&how, stream)) = data.split_first() else { return };
    parse(stream);
    FILES.with(|files| {
        dispatch(how, stream, files);
        if runs_over_a_socket(how, stream) {
            socket(how, stream, files);
        }
    });
}

/// Checks that what can be parsed can be encoded and parsed again.
fn parse(stream: &[u8]) {
    let Some((header, body)) = stream.split_first_chunk::<HEADER>() else { return };
    let command = Header::parse(header).map_or(u16::from(header[2]), |header| {
        assert_eq!(Header::parse(&header.to_bytes()).expect("as before"), header);
        header.command
    });
    if let Ok(request) = Request::parse(command, body) {
        if let Request::RegionWriteMulti { writes } = request {
            Request::writes(writes).filter_map(Result::ok).for_each(|write| assert!((1..=8).contains(&write.count)));
        }
        assert_eq!(Request::parse(request.command() as u16, &without_data(&request)), Ok(request.clone()));
    }
}

/// Encodes a request. The booleans of an interrupt message, which the parser skips, are written as zeros.
fn without_data(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = request.to_bytes();
    if let Request::SetIrqs { flags, count, .. } = request
        && flags & 2 != 0
    {
        bytes.resize(bytes.len() + *count as usize, 0);
    }
    bytes
}

fn greeting() -> (Header, &'static [u8]) {
    (Header { id: 0, command: Command::Version as u16, size: 20, kind: Kind::Command, error: 0 }, &[0; 4])
}

/// Dispatches the messages one by one, without a socket.
fn dispatch(how: u8, stream: &[u8], files: &Files) {
    let (mut dispatcher, mut mock) = (Dispatcher::default(), MockDevice::default());
    if how & GREETED != 0 {
        let (header, body) = greeting();
        dispatcher.message(header, body, Vec::new(), &mut mock).expect("a greeting");
    }
    let mut rest = stream;
    while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
        let Ok(header) = Header::parse(header) else { break };
        let Some((body, after)) = after.split_at_checked(header.size as usize - HEADER) else { break };
        rest = after;
        let fds = files.of(header.id).map(|fd| fd.try_clone_to_owned().expect("a descriptor")).collect();
        match dispatcher.message(header, body, fds, &mut mock) {
            Ok(Some(answer)) => {
                let head = answer.bytes.first_chunk().expect("a header");
                let reply = Header::parse(head).expect("a header that can be");
                assert_eq!((reply.id, reply.command), (header.id, header.command));
                assert_eq!(reply.size as usize, answer.bytes.len());
                assert!(matches!(reply.kind, Kind::Reply | Kind::Error) && answer.fds.len() <= MAX_FDS);
            }
            Ok(None) => assert_eq!(header.kind, Kind::Posted),
            Err(_) => break,
        }
    }
    dispatcher.end(&mut mock);
    assert!(mock.maps.is_empty() && mock.vectors == 0, "something is left");
}

/// Sends the messages over a socket, in two pieces.
fn socket(how: u8, stream: &[u8], files: &Files) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.set_nonblocking(true).expect("a socket that does not wait");
    theirs.set_nonblocking(true).expect("a socket that does not wait");
    let (mut session, mut mock) = (Session::new(ours.into()), MockDevice::default());
    let (header, body) = greeting();
    let hello = if how & GREETED != 0 { [&header.to_bytes(), body].concat() } else { Vec::new() };
    let (first, second) = stream.split_at(stream.len() / 2);
    let mut over = false;
    for bytes in [&hello[..], first, second] {
        let id = bytes.first_chunk().map_or(0, |&id| u16::from_ne_bytes(id));
        let fds: Vec<BorrowedFd<'_>> = files.of(id).collect();
        // A server that has hung up takes nothing.
        let _ = send(&theirs, bytes, &fds);
        over = over || session.handle(&mut mock).is_err();
        wait_for_descriptors(&session);
    }
    drop(theirs);
    for _ in 0..1000 {
        wait_for_descriptors(&session);
        over = over || session.handle(&mut mock).is_err();
    }
    assert!(over, "a session whose client has gone");
    session.end(&mut mock);
    assert!(mock.maps.is_empty() && mock.vectors == 0, "something is left");
}

/// Waits until descriptors that the session has been sent are received, for a second at most.
fn wait_for_descriptors(session: &Session) {
    if session.is_receiving() {
        let (fd, flags) = session.wait_on();
        wait_for(fd, flags);
    }
}
