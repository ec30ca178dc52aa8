//! Fuzz body: an arbitrary vhost-user front-end. The first byte is a set of flags, the rest is the front-end's
//! messages. Bits of a header's flags that mean nothing to the back-end select the file descriptors that come with
//! the message.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ringpass_ipc::EventNotifier;
use ringpass_port::MacAddress;
use ringpass_testing::{memfd, runs_over_a_socket, send, wait_for};
use ringpass_vhost_user::*;
use ringpass_virtio::device::{GuestMemory, VringConfig};
use ringpass_virtio::features::{EVENT_IDX, MRG_RXBUF, RING_PACKED, VERSION_1};
use rustix::event::{EventfdFlags, eventfd};

const FEATURES: u64 = VERSION_1 | RING_PACKED | EVENT_IDX | MRG_RXBUF;

/// Files whose descriptors a front-end sends.
struct Files([OwnedFd; 4]);

impl Files {
    fn new() -> Self {
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let (reader, _) = rustix::pipe::pipe().expect("a pipe");
        // A page, and a part of one.
        let small = memfd(5000);
        Self([memfd(64 << 10), event, reader, small])
    }

    /// Returns the descriptors that go with a message.
    fn of(&self, flags: u32) -> impl Iterator<Item = BorrowedFd<'_>> {
        let file = &self.0[(flags >> 13 & 3) as usize];
        (0..flags >> 8 & 0x1f).map(|_| file.as_fd())
    }
}

thread_local! {
    static FILES: Files = Files::new();
}

/// A mock device that checks its session's promises.
#[derive(Default)]
struct MockDevice {
    memory: Option<Arc<GuestMemory>>,
    running: [Option<VringConfig>; 4],
    enabled: [bool; 4],
}

fn check(memory: &GuestMemory, setup: &VringConfig) {
    let size = u64::from(setup.size);
    let packed = setup.features & RING_PACKED != 0;
    assert!((1..=1 << 15).contains(&size) && (packed || size.is_power_of_two()));
    let event = if setup.features & EVENT_IDX != 0 { 2 } else { 0 };
    let (driver, device) = if packed { (4, 4) } else { (4 + 2 * size + event, 4 + 8 * size + event) };
    let parts = [(setup.descriptors, 16 * size, 16), (setup.driver, driver, 2), (setup.device, device, 4)];
    for (at, len, align) in parts {
        let start = memory.user(at, len).expect("it lies in memory");
        assert!(at.is_multiple_of(align));
        // SAFETY: the byte is inside the memory, because `user` returned a pointer to `len` mapped bytes.
        unsafe { start.add(len as usize - 1).read_volatile() };
    }
}

impl Device for MockDevice {
    fn set_log(&mut self, log: Option<Arc<DirtyLog>>) -> Result<(), String> {
        // The front-end has no memory that the log does not cover.
        if let (Some(log), Some(memory)) = (&log, &self.memory) {
            memory.regions().iter().for_each(|region| log.mark(region.guest, region.len.min(1 << 20)));
        }
        Ok(())
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn queues(&self) -> usize {
        4
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), String> {
        self.running.iter().flatten().for_each(|setup| check(memory, setup));
        self.memory = Some(memory.clone());
        Ok(())
    }

    fn start(&mut self, queue: usize, start: QueueStart) -> Result<(), String> {
        assert!(self.running[queue].is_none(), "it runs already");
        assert!(self.memory.as_ref().is_some_and(|memory| Arc::ptr_eq(memory, &start.memory)));
        check(&start.memory, &start.setup);
        if let Some(inflight) = &start.setup.inflight {
            assert!(inflight.offset + inflight.len <= inflight.memory.len());
            assert!(inflight.len >= 16 + 16 * usize::from(start.setup.size));
        }
        self.running[queue] = Some(start.setup);
        Ok(())
    }

    fn enable(&mut self, queue: usize, on: bool) {
        self.enabled[queue] = on;
    }

    fn set_call(&mut self, queue: usize, call: Option<EventNotifier>) {
        assert!(self.running[queue].is_some());
        call.iter().for_each(EventNotifier::notify);
    }

    fn stop(&mut self, queue: usize) -> Result<VringBase, String> {
        Ok(self.running[queue].take().expect("it runs").base)
    }

    fn announce(&mut self, _mac: MacAddress) {}

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        if mtu < 68 { Err("too small".into()) } else { Ok(()) }
    }

    fn fault(&mut self) -> Option<Ended> {
        None
    }

    fn disconnected(&mut self, _why: &str) {
        *self = Self::default();
    }
}

/// Runs one case.
pub fn case(data: &[u8]) {
    let Some((&how, stream)) = data.split_first() else { return };
    parse(stream);
    FILES.with(|files| {
        dispatch(stream, files);
        if runs_over_a_socket(how, stream) {
            socket(stream, files);
        }
    });
}

/// Checks that what was parsed is encoded the same way.
fn parse(stream: &[u8]) {
    let Some((header, payload)) = stream.split_first_chunk::<HEADER>() else { return };
    let command = Header::parse(header).map_or(u32::from(header[0]), |header| {
        assert_eq!(Header::parse(&header.to_bytes()).expect("as before"), header);
        header.command
    });
    if let Ok(request) = Request::parse(command, payload) {
        assert_eq!(Request::parse(request.command() as u32, &request.to_bytes()), Ok(request));
    }
    if let Some(command) = Command::of(command)
        && let Ok(reply) = Reply::parse(command, payload)
    {
        assert_eq!(Reply::parse(command, &reply.to_bytes()), Ok(reply));
    }
}

fn flags(header: &[u8; HEADER]) -> u32 {
    u32::from_ne_bytes([header[4], header[5], header[6], header[7]])
}

/// Dispatches the messages one by one, without a socket.
fn dispatch(stream: &[u8], files: &Files) {
    let mut mock = MockDevice::default();
    let mut dispatcher = Dispatcher::new(&mock);
    let mut rest = stream;
    while let Some((bytes, after)) = rest.split_first_chunk::<HEADER>() {
        let Ok(header) = Header::parse(bytes) else { break };
        let Some((payload, after)) = after.split_at_checked(header.size as usize) else { break };
        rest = after;
        let fds = files.of(flags(bytes)).map(|fd| fd.try_clone_to_owned().expect("a descriptor")).collect();
        match dispatcher.message(header, payload, fds, &mut mock) {
            Ok(Some(answer)) => {
                let reply = Header::parse(answer.bytes.first_chunk().expect("a header")).expect("one that can be");
                assert_eq!((reply.command, reply.kind), (header.command, Kind::Reply));
                assert_eq!(reply.size as usize, answer.bytes.len() - HEADER);
                assert!(answer.fds.len() <= 1);
            }
            Ok(None) => {}
            Err(_) => break,
        }
    }
    dispatcher.end(&Ended::Lost(ConnectionLost::Closed), &mut mock);
}

/// Sends the messages over a socket, in two pieces.
fn socket(stream: &[u8], files: &Files) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.set_nonblocking(true).expect("a socket that does not wait");
    let mut mock = MockDevice::default();
    let mut session = Session::new(ours.into(), &mock);
    let (first, second) = stream.split_at(stream.len() / 2);
    let mut over = None;
    for bytes in [first, second] {
        let fds: Vec<BorrowedFd<'_>> = bytes.first_chunk().map_or(Vec::new(), |head| files.of(flags(head)).collect());
        // A back-end that has hung up takes nothing.
        let _ = send(&theirs, bytes, &fds);
        over = over.or_else(|| session.handle(&mut mock).err());
        wait_for_descriptors(&session);
    }
    drop(theirs);
    for _ in 0..1000 {
        wait_for_descriptors(&session);
        over = over.or_else(|| session.handle(&mut mock).err());
    }
    session.end(&over.expect("a session whose front-end has gone"), &mut mock);
    assert!(mock.memory.is_none() && mock.running.iter().all(Option::is_none), "something is left");
}

/// Waits until descriptors that the session has been sent are received, for a second at most.
fn wait_for_descriptors(session: &Session) {
    if session.is_receiving() {
        let (fd, flags) = session.wait_on();
        wait_for(fd, flags);
    }
}
