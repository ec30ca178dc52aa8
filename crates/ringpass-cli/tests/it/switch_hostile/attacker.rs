//! A front-end that breaks the rules: it writes its rings value by value, through the file that is its memory.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ringpass_vhost_user::{Frontend, Region, Request, SessionError, VringAddr, VringFd};
use ringpass_virtio::features::{RING_PACKED, VERSION_1};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const LIMIT: Duration = Duration::from_secs(10);

/// Its queues: reception and transmission.
pub const RX: u32 = 0;
pub const TX: u32 = 1;
/// Descriptors of each queue.
pub const SIZE: u16 = 8;

/// Guest address of its memory, its length, and the offset of the front-end's addresses to guest addresses.
const MEMORY: u64 = 0x10_0000;
const LEN: u64 = 1 << 20;
const USER: u64 = 1 << 40;
pub const TABLE: u64 = MEMORY + 0x4_0000;
pub const BUFFER: u64 = MEMORY + 0x8_0000;
pub const END: u64 = MEMORY + LEN;

/// Guest addresses of the parts of a queue.
pub fn descriptors(queue: u32) -> u64 {
    MEMORY + 0x1_0000 * u64::from(queue)
}

fn driver(queue: u32) -> u64 {
    descriptors(queue) + 0x4000
}

fn device(queue: u32) -> u64 {
    descriptors(queue) + 0x8000
}

/// A session whose rings are started and empty.
pub struct Attacker {
    pub session: Frontend,
    memory: OwnedFd,
    kicks: [OwnedFd; 2],
    calls: [OwnedFd; 2],
}

impl Attacker {
    /// Connects in place of the previous attacker, whose session may still have to end.
    pub fn come(path: &Path, features: u64) -> Self {
        let start = Instant::now();
        loop {
            match Self::try_come(path, features) {
                Ok(attacker) => return attacker,
                Err(why) => assert!(start.elapsed() < LIMIT, "the next one is not let in: {why}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn try_come(path: &Path, features: u64) -> Result<Self, SessionError> {
        let socket = UnixStream::connect(path).expect("the switch listens");
        socket.set_nonblocking(true).expect("a socket");
        let mut session = Frontend::new(socket.into(), LIMIT);
        let memory = memfd_create("attacker", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&memory, LEN).expect("memory");
        // These eventfds block: the protocol does not require nonblocking ones.
        let event = || eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let (kicks, calls) = ([event(), event()], [event(), event()]);
        let copy = |fd: &OwnedFd| vec![fd.try_clone().expect("a descriptor")];
        assert_eq!(session.number(&Request::GetFeatures)? & features, features);
        session.send_request(&Request::SetFeatures(VERSION_1 | features), vec![])?;
        let region = Region { guest: MEMORY, size: LEN, user: MEMORY + USER, offset: 0 };
        session.send_request(&Request::SetMemTable(vec![region]), copy(&memory))?;
        for index in [RX, TX] {
            let (ring, queue) = (VringFd { index: index as u8, polled: false }, index as usize);
            let base = if features & RING_PACKED == 0 { 0 } else { 0x8000 };
            session.send_request(&Request::SetVringNum { index, num: SIZE.into() }, vec![])?;
            session.send_request(&Request::SetVringBase { index, base }, vec![])?;
            let [descriptors, available, used] = [descriptors, driver, device].map(|part| part(index) + USER);
            session.send_request(
                &Request::SetVringAddr(VringAddr { index, flags: 0, descriptors, available, used }),
                vec![],
            )?;
            session.send_request(&Request::SetVringCall(ring), copy(&calls[queue]))?;
            session.send_request(&Request::SetVringKick(ring), copy(&kicks[queue]))?;
        }
        // All requests above are complete when this one is answered.
        session.number(&Request::GetFeatures)?;
        Ok(Self { session, memory, kicks, calls })
    }

    /// Writes to its memory.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.memory, bytes, address - MEMORY), Ok(bytes.len()));
    }

    /// Writes a descriptor of a split ring or an indirect table: address, length, flags, next.
    pub fn describe(&self, table: u64, slot: u64, (address, len, flags, next): (u64, u32, u16, u16)) {
        let word = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.words(table + 16 * slot, address, word);
    }

    /// Writes a descriptor of a packed ring: address, length, flags, id.
    pub fn describe_packed(&self, queue: u32, slot: u64, (address, len, flags, id): (u64, u32, u16, u16)) {
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
        self.words(descriptors(queue) + 16 * slot, address, word);
    }

    fn words(&self, at: u64, address: u64, word: u64) {
        // The word that makes a descriptor available is written last.
        self.write(at, &address.to_le_bytes());
        self.write(at + 8, &word.to_le_bytes());
    }

    /// Makes chains of a split ring available, and kicks.
    pub fn offer(&self, queue: u32, heads: &[u16]) {
        for (slot, head) in (0..).zip(heads) {
            self.write(driver(queue) + 4 + 2 * slot, &head.to_le_bytes());
        }
        self.index(queue, heads.len() as u16);
    }

    /// Sets the available index of a split ring, and kicks.
    pub fn index(&self, queue: u32, index: u16) {
        self.write(driver(queue) + 2, &index.to_le_bytes());
        self.kick(queue);
    }

    /// Makes one chain of one descriptor available in a split ring.
    pub fn offer_one(&self, queue: u32, descriptor: (u64, u32, u16, u16)) {
        self.describe(descriptors(queue), 0, descriptor);
        self.offer(queue, &[0]);
    }

    pub fn kick(&self, queue: u32) {
        let _ = rustix::io::write(&self.kicks[queue as usize], &1u64.to_ne_bytes());
    }

    /// Fills the counters of its call eventfds and makes them blocking, so that a write to one blocks forever.
    pub fn fill_calls(&self) {
        for call in &self.calls {
            let mut counter = [0; 8];
            rustix::io::ioctl_fionbio(call, true).expect("an eventfd");
            let _ = rustix::io::read(call, &mut counter);
            let _ = rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes());
            rustix::io::ioctl_fionbio(call, false).expect("an eventfd");
        }
    }

    /// Truncates the memory that it has shared to zero bytes.
    pub fn cut_short(&self) {
        ftruncate(&self.memory, 0).expect("its own memory");
    }

    /// Sends bytes that need not be a message.
    pub fn say(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(self.session.socket(), bytes), Ok(bytes.len()));
    }

    /// Waits until the switch has closed the connection.
    pub fn hung_up(self) {
        let start = Instant::now();
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        loop {
            assert!(start.elapsed() < LIMIT, "it is served on");
            let mut fds = [PollFd::from_borrowed_fd(self.session.socket(), PollFlags::empty())];
            match poll(&mut fds, Some(&second)) {
                Ok(_) if fds[0].revents().contains(PollFlags::HUP) => return,
                Ok(_) => {}
                Err(errno) => assert_eq!(io::Error::from(errno).kind(), io::ErrorKind::Interrupted),
            }
        }
    }
}
