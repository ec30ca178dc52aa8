//! The serving process with programs that connect, exchange frames by pipes, and end.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpass_ipc::Listener;
use ringpass_netmap::client::{Client, Error, Port};
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::{Mode, Register, register};
use ringpass_netmap::{Flags, Pools, PortRing, Slot};
use ringpass_netmap_server::{RequestError, ServedPort, ServedRings, Server, SwitchLinks, SwitchPlace, Switches};
use rustix::io::Errno;
use serde_json::Value;

/// A server on a thread, at a socket of its own.
pub struct Running {
    pub path: PathBuf,
    stop: Arc<AtomicBool>,
    /// Ends as a server that has a successor.
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<Left>>,
}

/// Descriptors that a server has left, by their names.
pub type Left = Vec<(String, OwnedFd)>;

const POOLS: Pools = Pools { interfaces: 60, ring_bytes: 1 << 20, buffers: 9000, buffer_size: 2048 };

impl Running {
    pub fn new(name: &str) -> Self {
        Self::with(name, Value::Null, Vec::new())
    }

    /// Starts a server whose switches have this status, and to which another one has left this.
    pub fn with(name: &str, status: Value, left: Left) -> Self {
        let path = std::env::temp_dir().join(format!("ringpass-test-{}-{name}.sock", std::process::id()));
        let listener = Listener::bind(&path).expect("a socket");
        let (stop, leave) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (stop, leave) = (stop.clone(), leave.clone());
            move || {
                let mut server = Server::new(listener, POOLS, Box::new(WithStatus(status))).expect("a server");
                server.take_over(left).expect("what was left");
                while !stop.load(Ordering::Relaxed) {
                    server.poll_once(Duration::from_millis(20)).expect("poll");
                }
                let mut left = Vec::new();
                if leave.load(Ordering::Relaxed) {
                    let put = &mut |name: &str, fd: BorrowedFd<'_>| {
                        left.push((name.to_owned(), fd.try_clone_to_owned()?));
                        Ok(())
                    };
                    server.hand_over(put).expect("room for all");
                }
                left
            }
        });
        Self { path, stop, leave, thread: Some(thread) }
    }

    /// Ends the server, and returns what it leaves to a successor.
    pub fn leave(mut self) -> Left {
        self.leave.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs").join().expect("the server")
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.path).expect("a connection")
    }

    pub fn open_with(&self, name: &str, asked: Register) -> Result<Port, Error> {
        Port::open(&name.parse().expect("a name"), &self.path, asked)
    }

    pub fn open(&self, name: &str) -> Port {
        self.open_with(name, Register::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Waits until this many buffers of the common memory are free.
    pub fn free(&self, awaited: u64) {
        let start = Instant::now();
        loop {
            let status = self.client().status().expect("a status");
            let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
            let free = status["common"]["free"].as_u64().unwrap();
            if free == awaited {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{free} buffers free, not {awaited}: {status}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join().expect("the server")));
    }
}

/// No switches, and a status.
pub struct WithStatus(Value);

impl Switches for WithStatus {
    fn open(&mut self, switch: &str, port: &str, rings: ServedRings) -> Opened {
        ().open(switch, port, rings)
    }

    fn open_alone(&mut self, port: &str, rings: ServedRings) -> Opened {
        ().open_alone(port, rings)
    }

    fn attach(&mut self, name: &str) -> Result<u32, RequestError> {
        ().attach(name)
    }

    fn connect(&mut self, name: &str, host: bool) -> Result<(u32, SwitchLinks), RequestError> {
        ().connect(name, host)
    }

    fn detach(&mut self, name: &str) -> Result<u32, RequestError> {
        ().detach(name)
    }

    fn is_address(&self, _: &str) -> bool {
        false
    }

    fn find(&self, name: &str) -> Option<SwitchPlace> {
        ().find(name)
    }

    fn next(&self, from: SwitchPlace) -> Option<(SwitchPlace, String)> {
        ().next(from)
    }

    fn status(&self) -> Value {
        self.0.clone()
    }
}

type Opened = Result<Box<dyn ServedPort>, RequestError>;

#[test]
fn a_status_of_any_length_comes_in_pages() {
    // Three bytes each, so that pages do not end where characters do.
    let long = "€".repeat(1_000_000) + &"x".repeat(1_000_001);
    let server = Running::with("pages", long.clone().into(), Vec::new());
    let status = server.client().status().expect("a status");
    assert_eq!(serde_json::from_str::<Value>(&status).expect("JSON")["switches"], long);
    // A program that reads a part keeps the rest; those of one user keep a few only.
    let mut parts: Vec<Client> = (0..5).map(|_| server.client()).collect();
    let first = |client: &mut Client| client.ask(&Request::status(0));
    parts[..4].iter_mut().for_each(|client| assert!(first(client).is_ok()));
    assert_eq!(refused(first(&mut parts[4])), Errno::AGAIN);
    assert_eq!(refused(parts[4].ask(&Request::status(1 << 19))), Errno::INVAL);
    assert_eq!(refused(parts[0].ask(&Request::status(u64::MAX))), Errno::INVAL);
    // That one's is given up, and there is room for another.
    assert!(first(&mut parts[4]).is_ok());
}

fn refused<T>(result: Result<T, Error>) -> Errno {
    match result.map(drop) {
        Err(Error::Refused { errno, .. }) => errno,
        other => panic!("not refused: {other:?}"),
    }
}

/// Sends numbered frames through a ring, and checks that they arrive on another.
pub fn exchange(port: &Port, from: &PortRing, other: &Port, to: &PortRing, count: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 0;
            while next < count {
                let own = from.own().min((count - next) as u32);
                for n in 0..own {
                    let position = from.position(n);
                    let slot = Slot { len: 60, flags: Flags::default(), ..from.ring().slot(position) };
                    let bytes = port.buffers().bytes(slot).expect("a buffer").cast::<u64>();
                    // SAFETY: the slot is this program's, and its buffer has room for a number.
                    unsafe { bytes.write(next) };
                    from.ring().set(position, slot);
                    next += 1;
                }
                from.release_slots(own);
                from.sync().unwrap();
                if from.own() == 0 {
                    port.wait(std::iter::once(from), Duration::from_secs(20)).unwrap();
                }
            }
        });
        let mut next = 0;
        while next < count {
            assert!(other.wait(std::iter::once(to), Duration::from_secs(20)).unwrap(), "after {next}");
            let own = to.own();
            for n in 0..own {
                let slot = to.ring().slot(to.position(n));
                assert_eq!(slot.len, 60);
                let bytes = other.buffers().bytes(slot).expect("a buffer").cast::<u64>();
                // SAFETY: the slot was received by this program and not released, so nobody writes to its
                // buffer, which has room for a number.
                assert_eq!(unsafe { bytes.read() }, next);
                next += 1;
            }
            to.release_slots(own);
        }
        to.sync().unwrap();
    });
}

#[test]
fn two_programs_exchange_frames_by_a_pipe() {
    let server = Running::new("pipe");
    let (first, second) = (server.open("netmap:x{1@1"), server.open("netmap:x}1@1"));
    assert_eq!(first.granted().memory_id, second.granted().memory_id);
    assert_eq!((first.granted().slots, first.granted().rings), ([1024; 2], [1; 2]));
    exchange(&first, &first.tx()[0], &second, &second.rx()[0], 200_000);
    exchange(&second, &second.tx()[0], &first, &first.rx()[0], 200_000);
    server.free(8998 - 2048);
    drop(first);
    // The second end keeps the pipe; the first end continues where it was.
    let first = server.open("netmap:x{1@1");
    exchange(&first, &first.tx()[0], &second, &second.rx()[0], 5000);
    assert!(!second.wait(second.rx().iter(), Duration::from_millis(20)).unwrap(), "nothing more");
    drop((first, second));
    server.free(8998);
}

/// Another process that has a descriptor of the connection adopts the registration, which lasts until that is closed.
#[test]
fn registrations_are_adopted_by_who_has_the_connection() {
    let server = Running::new("adopt");
    let adopt = |port: &Port| Client::adopt(&server.path, port.server().try_clone_to_owned().unwrap());
    let adopted = |port: &Port| {
        let (client, granted) = adopt(port).unwrap_or_else(|error| panic!("{error}"));
        client.into_port(granted.expect("a registration")).unwrap_or_else(|error| panic!("{error}"))
    };
    let (first, second) = (server.open("netmap:x{1@1"), server.open("netmap:x}1@1"));
    let other = adopted(&first);
    assert_eq!((other.name(), other.granted()), ("x{1", first.granted()));
    drop(first);
    exchange(&other, &other.tx()[0], &second, &second.rx()[0], 5000);
    exchange(&second, &second.tx()[0], &other, &other.rx()[0], 5000);
    let third = adopted(&other);
    drop(other);
    exchange(&third, &third.tx()[0], &second, &second.rx()[0], 5000);
    // An end that is registered anew, on the same connection.
    let mut client = third.unregister().unwrap_or_else(|error| panic!("{error}"));
    server.free(8998 - 2048);
    let granted = client.try_register("y{1", &Register { mode: Mode::AllNic, ..Register::default() });
    let port = client.into_port(granted.unwrap_or_else(|error| panic!("{error}"))).unwrap();
    assert_eq!(adopted(&port).name(), "y{1");
    drop((port, second));
    server.free(8998);
    // A connection without a registration, and a socket that is none.
    let connection = Client::connect(&server.path).unwrap().socket().try_clone_to_owned().unwrap();
    assert!(Client::adopt(&server.path, connection).unwrap().1.is_none());
    let (stranger, _end) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(Client::adopt(&server.path, stranger.into()).unwrap().1.is_none());
}

#[test]
fn ends_begin_where_the_last_program_stood() {
    let server = Running::new("again");
    let (first, second) = (server.open("netmap:x{1@1"), server.open("netmap:x}1@1"));
    exchange(&first, &first.tx()[0], &second, &second.rx()[0], 10);
    // A program that dies with invalid positions.
    first.tx()[0].ring().header().head.store(77_777, Ordering::Relaxed);
    drop(first);
    server.free(8998 - 2048);
    std::thread::sleep(Duration::from_millis(50));
    let first = server.open("netmap:x{1@1");
    exchange(&first, &first.tx()[0], &second, &second.rx()[0], 10);
}

/// More than the limits is granted as far as they allow, and what does not fit into the memory is refused.
#[test]
fn programs_ask_for_more_than_there_can_be() {
    let server = Running::new("more");
    let pipe = |slots, rings| server.open_with("netmap:x{1@1", Register { slots, rings, ..Register::default() });
    let granted = |slots, rings| {
        let port = pipe(slots, rings).unwrap_or_else(|error| panic!("{error}"));
        let second = server.open("netmap:x}1");
        let Register { slots: [tx, rx], rings: [tx_rings, rx_rings], .. } = *port.granted();
        assert_eq!((second.granted().slots, second.granted().rings), ([rx, tx], [rx_rings, tx_rings]));
        assert_eq!([port.tx().len(), port.rx().len()], port.granted().rings.map(usize::from));
        drop((port, second));
        server.free(8998);
        ([tx, rx], [tx_rings, rx_rings])
    };
    assert_eq!(granted([1 << 20, 0], [0, 2]), ([4096, 1024], [1, 2]));
    assert_eq!(granted([u32::MAX, 2], [1, u16::MAX]), ([4096, 2], [1, 16]));
    assert_eq!(granted([16, 5], [99, 99]), ([16, 5], [16, 16]));
    assert_eq!(refused(pipe([16_384; 2], [u16::MAX; 2])), Errno::NOMEM);
    assert_eq!(refused(pipe([16_384, 16], [0; 2])), Errno::NOMEM);
    server.free(8998);
}

#[test]
fn what_programs_ask_for_wrongly() {
    let server = Running::new("wrong");
    let errno = |name: &str, asked: Register| refused(server.open_with(name, asked));
    let with_flags = |flags| Register { flags, ..Register::default() };
    assert_eq!(errno("netmap:eth0", Register::default()), Errno::NXIO);
    assert_eq!(errno("vale0:x", Register::default()), Errno::NXIO, "there are no switches here");
    assert_eq!(errno("netmap:x{1", Register { slots: [1, 0], ..Register::default() }), Errno::INVAL);
    assert_eq!(errno("netmap:x{1@7", Register::default()), Errno::INVAL);
    assert_eq!(errno("netmap:x{1/r", Register::default()), Errno::INVAL);
    assert_eq!(errno("netmap:x{1", with_flags(register::MONITOR_TX)), Errno::INVAL);
    let mut client = server.client();
    let mode = Register { mode: Mode::Host, ..Register::default() };
    let request = ringpass_netmap::protocol::Request::register("x{1", &mode);
    assert_eq!(refused(client.ask(&request)), Errno::INVAL);
    let mut request = ringpass_netmap::protocol::Request::register("x{1", &Register::default());
    request.header[0] = 13;
    assert_eq!(refused(client.ask(&request)), Errno::INVAL);
    // The connection continues, and can have one port.
    let right = ringpass_netmap::protocol::Request::register("x{1", &Register::default());
    client.ask(&right).unwrap();
    assert_eq!(refused(client.ask(&right)), Errno::BUSY);
    drop(client);
    let exclusive = server.open_with("netmap:x{1", with_flags(register::EXCLUSIVE)).unwrap();
    assert_eq!(errno("netmap:x{1", Register::default()), Errno::BUSY);
    let other = server.open("netmap:x}1");
    let shared = server.open("netmap:x}1");
    assert_eq!(errno("netmap:x}1/x", Register::default()), Errno::BUSY);
    drop((exclusive, other, shared));
    server.free(8998);
    let nobody = Client::connect(&server.path.with_extension("none")).map(drop);
    assert!(matches!(nobody, Err(Error::NoServer(_))), "{nobody:?}");
}

/// Requests without a registration, about ports that exist and that do not.
#[test]
fn ports_and_memories_tell_what_they_have() {
    use ringpass_netmap::protocol::{BODY, Request};
    use ringpass_netmap::request::{Kind, PortInfo};
    let server = Running::new("info");
    let mut client = server.client();
    let mut ask =
        |kind: Kind, name: &str, body: &[u8]| client.ask(&Request::new(kind, name, body)).map(|(reply, _)| reply.body);
    let asked = Register { slots: [64; 2], ..Register::default() };
    let port = server.open_with("netmap:x{1@1/x", asked).unwrap();
    let info = PortInfo::parse(ask(Kind::PortInfoGet, "y{1", &[]).unwrap().first_chunk().unwrap());
    assert_eq!((info.slots, info.rings, info.memory_id), ([1024; 2], [1; 2], 3), "a memory of its own");
    let memory_size = port.granted().memory_size;
    for (name, slots, rings) in [("x}1", [64; 2], [1; 2]), ("x{2", [1024; 2], [1; 2]), ("", [0; 2], [0; 2])] {
        let info = PortInfo::parse(ask(Kind::PortInfoGet, name, &[]).unwrap().first_chunk().unwrap());
        assert_eq!(info, PortInfo { memory_size, slots, rings, host_rings: [0; 2], memory_id: 1 }, "{name}");
    }
    assert_eq!(refused(ask(Kind::PortInfoGet, "eth0", &[])), Errno::NXIO);
    let number = |body: &[u8; BODY], at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
    for name in ["x{1", ""] {
        let pools = ask(Kind::PoolsInfoGet, name, &[]).unwrap();
        assert_eq!([number(&pools, 0), number(&pools, 8), number(&pools, 16)], [memory_size, 1, 0]);
        assert_eq!(number(&pools, 56), u64::from(POOLS.buffers) | u64::from(POOLS.buffer_size) << 32);
        assert_eq!(number(&pools, 48) + u64::from(POOLS.buffers * POOLS.buffer_size), memory_size);
    }
    assert_eq!(refused(ask(Kind::PoolsInfoGet, "", &[0, 0, 0, 0, 0, 0, 0, 0, 7])), Errno::INVAL, "memory 7");
    assert_eq!(refused(ask(Kind::ValeList, "", &[])), Errno::NOENT);
    drop(port);
    server.free(8998);
}

#[test]
fn bound_rings_and_extra_buffers() {
    let server = Running::new("extra");
    let asked = Register { extra_buffers: 100, slots: [64, 64], ..Register::default() };
    let port = server.open_with("netmap:x{1@1/T", asked.clone()).unwrap();
    assert_eq!((port.tx().len(), port.rx().len(), port.granted().extra_buffers), (1, 0, 100));
    server.free(8998 - 128 - 100);
    let reader = server.open("netmap:x{1@1/R");
    assert_eq!((reader.tx().len(), reader.rx().len()), (0, 1));
    let null = server.open_with("netmap:x}1@1", Register { extra_buffers: 10_000, ..Register::default() }).unwrap();
    assert_eq!(null.granted().extra_buffers as u64, 8998 - 228, "what there is");
    server.free(0);
    drop(null);
    server.free(8998 - 228);
    drop(port);
    server.free(8998 - 128);
    drop(reader);
    server.free(8998);
}

/// The server is killed: blocked programs get an error.
#[test]
fn programs_hear_that_the_server_is_gone() {
    let server = Running::new("gone");
    let port = server.open("netmap:x{1");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| port.wait(port.rx().iter(), Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(50));
        drop(server);
        assert!(matches!(waiting.join().unwrap(), Err(Error::ConnectionLost(_))));
    });
}

/// Number of descriptors and mappings of this process.
fn held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc").lines().count();
    (std::fs::read_dir("/proc/self/fd").expect("proc").count(), maps)
}

#[test]
fn thousands_of_programs_leave_nothing_behind() {
    let server = Running::new("many");
    let round = |n: usize| {
        let name = ["netmap:x{1", "netmap:x}1", "netmap:y{2/T"][n % 3];
        let port =
            server.open_with(name, Register { slots: [64; 2], extra_buffers: 5, ..Register::default() }).unwrap();
        (!n.is_multiple_of(5)).then_some(port)
    };
    (0..50).map(round).for_each(drop);
    server.free(8998);
    let before = held();
    for block in 0..400 {
        // Some at a time, and some that are closed at once.
        let _ports: Vec<Option<Port>> = (0..8).map(|n| round(block * 8 + n)).collect();
        // The server notices a little later.
        if block % 2 == 0 {
            server.client().status().unwrap();
        }
    }
    server.free(8998);
    let after = held();
    // Other tests of this file run at the same time.
    assert!(after.0 < before.0 + 100 && after.1 < before.1 + 150, "{before:?} {after:?}");
}

/// Arbitrary bytes instead of requests, complete and truncated: each ends its own connection at most.
#[test]
fn whatever_programs_send_the_others_are_served() {
    use std::io::Write;
    let server = Running::new("noise");
    let (first, second) = (server.open("netmap:x{1"), server.open("netmap:x}1"));
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for round in 0..300 {
        let mut stream = std::os::unix::net::UnixStream::connect(&server.path).expect("a connection");
        let mut bytes = ringpass_netmap::protocol::Request::register("z{1", &Register::default()).bytes();
        for _ in 0..1 + random() % 8 {
            let at = random() as usize % bytes.len();
            bytes[at] = random() as u8;
        }
        bytes.truncate(if round % 3 == 0 { random() as usize % bytes.len() } else { bytes.len() });
        let many = bytes.repeat(1 + random() as usize % 5);
        let _ = stream.write_all(&many);
    }
    exchange(&first, &first.tx()[0], &second, &second.rx()[0], 2000);
    drop((first, second));
    server.free(8998);
}

/// The eventfds are shared with the program at the pipe's other end, which may clear `O_NONBLOCK` and fill a
/// counter.
#[test]
fn a_program_that_makes_eventfds_block_stops_neither_itself_nor_the_other() {
    let running = Running::new("blocking");
    let (done, finished) = std::sync::mpsc::channel();
    let (near, far) = (running.open("netmap:bl{0"), running.open("netmap:bl}0"));
    let hostile = far.call_event().try_clone_to_owned().unwrap();
    for call_event in [near.call_event(), far.call_event()] {
        rustix::io::ioctl_fionbio(call_event, false).unwrap();
    }
    std::thread::spawn(move || {
        // Nothing was signalled: a read would block.
        near.clear_events();
        rustix::io::write(&hostile, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(far.rx()[0].arm().unwrap(), "nothing has come");
        // A frame for a blocked program: a write to its full eventfd would block.
        let ring = &near.tx()[0];
        let header = ring.ring().header();
        let next = (header.head.load(Ordering::Relaxed) + 1) % ring.ring().slots();
        header.cur.store(next, Ordering::Relaxed);
        header.head.store(next, Ordering::Release);
        ring.sync().unwrap();
        assert_eq!(near.kicks_sent(), 1);
        done.send(()).unwrap();
    });
    finished.recv_timeout(Duration::from_secs(30)).expect("neither has waited");
}
