//! A mock device that checks the promises of its session, and a front-end that sends arbitrary messages.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringpass_ipc::EventNotifier;
use ringpass_port::MacAddress;
pub use ringpass_testing::{event, memfd, resources, send, wait_for};
use ringpass_vhost_user::*;
use ringpass_virtio::device::GuestMemory;
use ringpass_virtio::features::*;

pub const PAGE: u64 = 4096;
pub const LIMIT: Duration = Duration::from_secs(10);
/// Address at which the front-end has the guest's memory.
pub const USER: u64 = 0x7f00_0000_0000;
/// Size of the guest's memory in bytes.
pub const MEMORY: u64 = 64 * PAGE;
pub const FEATURES: u64 =
    VERSION_1 | RING_PACKED | EVENT_IDX | INDIRECT_DESC | MQ | MRG_RXBUF | CTRL_VQ | CTRL_RX | STATUS;
/// Features that a session offers for the device.
pub const OFFERED: u64 = FEATURES | features::PROTOCOL_FEATURES | features::LOG_ALL;
pub const PROTOCOL: u64 = features::REPLY_ACK
    | features::MQ
    | features::LOG_SHMFD
    | features::RARP
    | features::NET_MTU
    | features::INFLIGHT_SHMFD
    | features::RESET_DEVICE
    | features::CONFIGURE_MEM_SLOTS
    | features::STATUS;

/// State of a mock device with two queue pairs.
#[derive(Default)]
pub struct State {
    pub memory: Option<Arc<GuestMemory>>,
    pub queues: [Queue; 4],
    pub mtu: Option<u16>,
    pub announced: Vec<MacAddress>,
    pub log: Option<Arc<DirtyLog>>,
    pub fault: Option<String>,
    /// Reasons why its sessions ended.
    pub ended: Vec<String>,
    /// Number of calls of `start` and of `set_memory`.
    pub starts: u32,
    pub memories: u32,
}

#[derive(Default)]
pub struct Queue {
    pub running: Option<QueueStart>,
    pub enabled: bool,
}

#[derive(Clone)]
pub struct MockDevice {
    state: Arc<Mutex<State>>,
    /// Number of chains that the device claims to have taken from a queue.
    taken: u32,
}

impl Default for MockDevice {
    fn default() -> Self {
        Self { state: Arc::default(), taken: 1 }
    }
}

impl MockDevice {
    /// Creates a device that real guests can run with: it takes no chains.
    pub fn idle() -> Self {
        Self { taken: 0, ..Self::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn running(&self) -> Vec<usize> {
        let state = self.state();
        (0..4).filter(|&queue| state.queues[queue].running.is_some()).collect()
    }

    /// Returns whether nothing of a front-end is left.
    pub fn is_fresh(&self) -> bool {
        let state = self.state();
        state.memory.is_none() && state.queues.iter().all(|queue| queue.running.is_none() && !queue.enabled)
    }

    /// Reads and writes all memory that the device was given.
    pub fn touch(&self) {
        let state = self.state();
        for region in state.memory.iter().flat_map(|memory| memory.regions()) {
            for at in (0..region.len).step_by(PAGE as usize).chain([region.len - 1]) {
                // SAFETY: the offset is inside the region, which lies in its mapping. `state.memory` keeps the
                // mapping.
                unsafe {
                    let byte = region.memory.as_ptr().add((region.offset + at) as usize);
                    byte.write_volatile(byte.read_volatile().wrapping_add(1));
                }
            }
        }
    }

    /// Checks that `memory` contains all parts of a queue.
    fn check(memory: &GuestMemory, start: &QueueStart) {
        let size = u64::from(start.setup.size);
        let packed = start.setup.features & RING_PACKED != 0;
        let (driver, device) = if packed { (4, 4) } else { (4 + 2 * size, 4 + 8 * size) };
        assert!(memory.user(start.setup.descriptors, 16 * size).is_some());
        assert!(memory.user(start.setup.driver, driver).is_some());
        assert!(memory.user(start.setup.device, device).is_some());
        assert!(start.setup.descriptors.is_multiple_of(16) && (1..=1 << 15).contains(&size));
        assert!(packed || size.is_power_of_two());
        if let Some(inflight) = &start.setup.inflight {
            assert!(inflight.offset + inflight.len <= inflight.memory.len() && inflight.offset.is_multiple_of(64));
            assert!(inflight.len >= 16 + 16 * usize::from(start.setup.size));
        }
    }
}

impl Device for MockDevice {
    fn set_log(&mut self, log: Option<Arc<DirtyLog>>) -> Result<(), String> {
        self.state().log = log;
        Ok(())
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn queues(&self) -> usize {
        4
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), String> {
        let mut state = self.state();
        state.queues.iter().filter_map(|queue| queue.running.as_ref()).for_each(|start| Self::check(memory, start));
        state.memory = Some(memory.clone());
        state.memories += 1;
        Ok(())
    }

    fn start(&mut self, queue: usize, start: QueueStart) -> Result<(), String> {
        let mut state = self.state();
        assert!(state.queues[queue].running.is_none(), "queue {queue} runs");
        assert!(Arc::ptr_eq(state.memory.as_ref().unwrap(), &start.memory));
        Self::check(&start.memory, &start);
        if let Some(call) = &start.call {
            call.notify();
        }
        state.queues[queue].running = Some(start);
        state.starts += 1;
        Ok(())
    }

    fn enable(&mut self, queue: usize, on: bool) {
        self.state().queues[queue].enabled = on;
    }

    fn set_call(&mut self, queue: usize, call: Option<EventNotifier>) {
        self.state().queues[queue].running.as_mut().expect("it runs").call = call;
    }

    /// Returns a position as if `taken` chains had been taken.
    fn stop(&mut self, queue: usize) -> Result<VringBase, String> {
        let start = self.state().queues[queue].running.take().expect("it runs");
        let both = if start.setup.features & RING_PACKED == 0 { 1 } else { 0x1_0001 };
        Ok(start.setup.base + self.taken * both)
    }

    fn announce(&mut self, mac: MacAddress) {
        self.state().announced.push(mac);
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        if mtu < 68 {
            return Err(format!("an MTU of {mtu}"));
        }
        self.state().mtu = Some(mtu);
        Ok(())
    }

    fn fault(&mut self) -> Option<Ended> {
        self.state().fault.take().map(Ended::Fault)
    }

    fn disconnected(&mut self, why: &str) {
        let mut state = self.state();
        let ended = std::mem::take(&mut state.ended);
        *state = State { ended, ..State::default() };
        state.ended.push(why.to_owned());
    }
}

/// A session that the test steps, and its front-end.
pub struct Bench {
    pub mock: MockDevice,
    pub front: Front,
    session: Option<Session>,
    pub timeout: Duration,
}

impl Bench {
    /// Creates a connected session in which nothing was sent yet.
    pub fn new() -> Self {
        let mock = MockDevice::default();
        let (session, front) = Self::pair(&mock, LIMIT);
        Self { mock, front, session: Some(session), timeout: LIMIT }
    }

    fn pair(mock: &MockDevice, timeout: Duration) -> (Session, Front) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(LIMIT)).unwrap();
        theirs.set_write_timeout(Some(LIMIT)).unwrap();
        (Session::with_timeout(ours.into(), mock, timeout), Front(theirs))
    }

    /// Connects another front-end; the previous session must be over.
    pub fn connect(&mut self) {
        assert!(self.session.is_none());
        let (session, front) = Self::pair(&self.mock, self.timeout);
        (self.session, self.front) = (Some(session), front);
    }

    /// Handles the messages that have arrived. Returns why the session has ended, if it has.
    pub fn turn(&mut self) -> Option<Ended> {
        let session = self.session.as_mut().expect("a session");
        loop {
            match session.handle(&mut self.mock) {
                Ok(0) if session.is_receiving() => {
                    let (fd, flags) = session.wait_on();
                    wait_for(fd, flags);
                }
                Ok(0) => return None,
                Ok(_) => {}
                Err(ended) => {
                    self.session.take().unwrap().end(&ended, &mut self.mock);
                    assert!(self.mock.is_fresh(), "something is left of the front-end: {ended}");
                    return Some(ended);
                }
            }
        }
    }

    pub fn goes_on(&mut self) {
        let ended = self.turn();
        assert!(ended.is_none(), "{}", ended.unwrap());
    }

    /// Handles the messages that have arrived, which must end the session, and connects again. Returns the reason.
    pub fn ended(&mut self) -> Ended {
        let ended = self.turn().expect("an end");
        self.connect();
        ended
    }

    /// Sends a request that has no reply; the session must continue.
    pub fn tell(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) {
        self.front.send(&request.message(Kind::Request), fds);
        self.goes_on();
    }

    /// Sends a request and returns its reply.
    pub fn ask(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Reply {
        let kind = if request.is_answered() { Kind::Request } else { Kind::NeedsReply };
        self.front.send(&request.message(kind), fds);
        self.goes_on();
        self.front.reply(request.command())
    }

    /// Sends a request that must be carried out and acknowledged.
    pub fn done(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) {
        assert_eq!(self.ask(request, fds), Reply::Number(0), "{request:?}");
    }

    /// Sends a request that must be refused: with a negative acknowledgement if one was asked for, otherwise by the
    /// end of the session. Leaves a fresh session.
    pub fn refused(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> String {
        if !request.is_answered() {
            assert_eq!(self.ask(request, fds), Reply::Number(1), "{request:?}");
            self.session.as_mut().unwrap().take_refusal().expect("a reason");
        }
        self.front.send(&request.message(Kind::Request), fds);
        match self.turn() {
            Some(Ended::Refused(name, why)) => {
                assert_eq!(name, CommandName(request.command() as u32));
                self.connect();
                why
            }
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Sends a request that must be refused by a negative acknowledgement, and the session continues.
    pub fn refused_gently(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> String {
        assert_eq!(self.ask(request, fds), Reply::Number(1), "{request:?}");
        self.session.as_mut().unwrap().take_refusal().expect("a reason")
    }

    /// Performs the feature negotiation that precedes memory and rings.
    pub fn greet(&mut self, features: u64) -> &mut Self {
        self.tell(&Request::SetOwner, &[]);
        assert_eq!(self.ask(&Request::GetFeatures, &[]), Reply::Number(OFFERED));
        self.tell(&Request::SetProtocolFeatures(PROTOCOL), &[]);
        self.done(&Request::SetFeatures(features | features::PROTOCOL_FEATURES), &[]);
        self
    }

    /// Shares the guest's memory: one region.
    pub fn share(&mut self) -> OwnedFd {
        let file = memfd(MEMORY);
        self.done(&Request::SetMemTable(vec![region(0, MEMORY, 0)]), &[file.as_fd()]);
        file
    }

    /// Sets up a ring of 256 descriptors except for its kick.
    pub fn prepare(&mut self, index: u32, base: VringBase) {
        self.done(&Request::SetVringNum { index, num: 256 }, &[]);
        self.done(&Request::SetVringBase { index, base }, &[]);
        self.done(&Request::SetVringAddr(address(index)), &[]);
    }

    /// Sets up a ring and starts it.
    pub fn start(&mut self, index: u32) {
        self.prepare(index, 0);
        self.done(&Request::SetVringKick(fd_of(index)), &[event().as_fd()]);
        assert!(self.mock.running().contains(&(index as usize)));
    }
}

/// Returns the addresses of the tests' rings.
pub fn address(index: u32) -> VringAddr {
    let at = USER + u64::from(index) * 4 * PAGE;
    VringAddr { index, flags: 0, descriptors: at, available: at + PAGE, used: at + 2 * PAGE }
}

pub fn region(guest: u64, size: u64, offset: u64) -> Region {
    Region { guest, size, user: USER + guest, offset }
}

pub fn fd_of(index: u32) -> VringFd {
    VringFd { index: index as u8, polled: false }
}

/// A front-end that sends arbitrary messages.
pub struct Front(pub UnixStream);

impl Front {
    /// Sends bytes and descriptors. Returns how many bytes were taken; fails if the back-end has hung up.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        send(&self.0, bytes, fds)
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        assert_eq!(self.try_send(bytes, fds), Ok(bytes.len()));
    }

    pub fn reply(&mut self, command: Command) -> Reply {
        let mut header = [0; HEADER];
        self.0.read_exact(&mut header).unwrap();
        let header = Header::parse(&header).unwrap();
        assert_eq!((header.command, header.kind), (command as u32, Kind::Reply));
        let mut payload = vec![0; header.size as usize];
        self.0.read_exact(&mut payload).unwrap();
        let by = if payload.len() == 8 && command != Command::GetVringBase { Command::GetFeatures } else { command };
        Reply::parse(by, &payload).unwrap()
    }
}

/// Builds a message from the number of its command.
pub fn message(command: u32, kind: Kind, payload: &[u8]) -> Vec<u8> {
    [&Header { command, kind, size: payload.len() as u32 }.to_bytes(), payload].concat()
}
