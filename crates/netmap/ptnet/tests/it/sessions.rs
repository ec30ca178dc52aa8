//! Tests of vfio-user clients that misuse their memory and their eventfds.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Host, pipe, pipe_hosts, region, wait};
use ringpass_memory::{ForeignMemory, Memory};
use ringpass_netmap::csb::Csb;
use ringpass_ptnet::GuestPort;
use ringpass_vfio_user::{Access, Client, MSIX};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const LIMIT: Duration = Duration::from_secs(30);
const AT: u64 = 0x10_0000;

/// A client that has started its port, with a CSB in a file that it can truncate.
struct Guest {
    client: Client,
    file: OwnedFd,
    csb: Csb,
}

impl Guest {
    fn start(path: &Path) -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let memory: Memory = ForeignMemory::map(file.as_fd(), 0, 8192).unwrap().into();
        let csb = Csb::new(&memory, 0, 4096, 2).unwrap();
        let start = Instant::now();
        // The previous client may not have gone yet.
        let client = loop {
            match Client::connect(path, LIMIT) {
                Ok(client) => break client,
                Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
            }
        };
        let mut guest = Self { client, file, csb };
        guest.map();
        for (at, value) in [(52, 0), (56, AT as u32), (60, 0), (64, AT as u32 + 4096)] {
            guest.write(at, value);
        }
        guest.write(4, 1);
        assert_eq!(guest.read(4), 0, "started");
        guest
    }

    fn map(&mut self) {
        self.client.dma_map(AT, 8192, (self.file.as_fd(), 0), Access::ReadWrite).unwrap();
    }

    fn write(&mut self, at: u64, value: u32) {
        self.client.write(0, at, &value.to_le_bytes()).unwrap();
    }

    fn read(&mut self, at: u64) -> u32 {
        let mut out = [0; 4];
        self.client.read(0, at, &mut out).unwrap();
        u32::from_le_bytes(out)
    }

    /// Sends `slots` more slots from the current position. Returns whether the port takes them.
    fn send(&mut self, slots: u32, of: u32) -> bool {
        let head = (self.csb.read_atok(0).head + slots) % of;
        self.csb.write_atok(0, head, head, 0);
        self.write(128, 0);
        let start = Instant::now();
        while self.csb.read_ktoa(0).0 != head {
            if start.elapsed() > LIMIT {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

fn hosts(folder: &Path) -> [Host; 2] {
    pipe_hosts(folder, &mut region(1, 64), 64)
}

#[test]
fn a_file_that_is_cut_short_ends_the_session_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = hosts(folder.path());
    for round in 0..10 {
        let mut guest = Guest::start(&a.path);
        assert!(guest.send(3, 64), "round {round}");
        let Guest { mut client, file, csb } = guest;
        if round % 2 == 0 {
            // This process's own view of the file would be lost as well.
            drop(csb);
            ftruncate(&file, 0).unwrap();
        } else {
            // The half with the guest's positions stays. One that has changed makes the port write to the other half.
            ftruncate(&file, 4096).unwrap();
            let head = (csb.read_atok(0).head + 1) % 64;
            csb.write_atok(0, head, head, 0);
        }
        let start = Instant::now();
        // A port that rests does not look at the memory; a kick of the first ring wakes it.
        while client.write(0, 128, &[0; 4]).is_ok() && client.read(0, 4, &mut [0; 4]).is_ok() {
            assert!(start.elapsed() < LIMIT, "the session goes on");
        }
    }
    // What was passed on has arrived; zeros that the port may have read from the truncated file are unchanged or
    // invalid positions.
    let mut guest = Guest::start(&b.path);
    assert!(guest.send(1, 64));
    drop(guest);
    assert!(a.end().iter().filter(|why| why.contains("Port")).count() == 10);
    drop(b);
}

#[test]
fn memory_is_unmapped_and_mapped_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = hosts(folder.path());
    let mut guest = Guest::start(&a.path);
    let mut other = Guest::start(&b.path);
    for round in 0..50 {
        assert!(guest.send(1, 64));
        guest.client.dma_unmap(AT + 4096 * (round % 2), 4096).unwrap();
        // While a half of the CSB is unmapped, nothing is read and nothing is published.
        let before = guest.csb.read_ktoa(0);
        let head = guest.csb.read_atok(0).head;
        guest.csb.write_atok(0, (head + 1) % 64, (head + 1) % 64, 0);
        guest.write(128, 0);
        guest.read(4);
        assert_eq!(guest.csb.read_ktoa(0), before);
        let half = (guest.file.as_fd(), 4096 * (round % 2));
        guest.client.dma_map(AT + half.1, 4096, half, Access::ReadWrite).unwrap();
        assert!(guest.send(0, 64), "what was said meanwhile");
        // The other end releases all of it.
        let start = Instant::now();
        while other.csb.read_ktoa(1).1 != (head + 1) % 64 {
            assert!(start.elapsed() < LIMIT);
        }
        other.csb.write_atok(1, (head + 1) % 64, (head + 1) % 64, 0);
        other.write(132, 0);
    }
    drop((guest, other));
    assert_eq!((a.counters.get().invalid_positions, b.counters.get().invalid_positions), (0, 0));
    drop((a, b));
}

/// An eventfd on which a write would block does not block the host.
#[test]
fn interrupts_that_block_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = hosts(folder.path());
    let (mut guest, mut other) = (Guest::start(&a.path), Guest::start(&b.path));
    let events = [0, 1].map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    guest.client.set_vectors(MSIX, &events.each_ref().map(|event| event.try_clone().unwrap())).unwrap();
    for event in &events {
        assert!(wait(event, LIMIT), "something may have happened before");
        rustix::io::ioctl_fionbio(event, false).unwrap();
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).unwrap();
        rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }
    guest.csb.set_appl_need_kick(1, true);
    for _ in 0..20 {
        assert!(other.send(1, 64));
    }
    let start = Instant::now();
    while guest.csb.read_ktoa(1).1 != 20 {
        assert!(start.elapsed() < LIMIT, "{:?}", guest.csb.read_ktoa(1));
    }
    assert!(guest.send(5, 64) && a.counters.get().interrupts > 0);
    drop((guest, other));
    drop((a, b));
}

/// Releases a thread that is blocked reading an eventfd, so that a failing test ends.
struct LetGo(OwnedFd);

impl Drop for LetGo {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The port's other side shares the event's open file description, and with it `O_NONBLOCK`.
#[test]
fn an_eventfd_that_blocks_does_not_stop_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = region(1, 64);
    let [(end, rings, kick), _other] = pipe(&mut region, 64);
    let theirs = LetGo(kick.try_clone().unwrap());
    let interface = end.bind(&mut region, |_, _| true).unwrap() as u32;
    let port = GuestPort { interface, rings, mac: crate::common::mac(1), memory_id: 7, set_header_len: None };
    let host = Host::new(folder.path(), "a", crate::common::shared(&region, 7), port, kick);
    rustix::io::ioctl_fionbio(&theirs.0, false).unwrap();
    let mut guest = Guest::start(&host.path);
    for _ in 0..20 {
        // Long enough for the host to fall asleep; the message wakes it, not the event.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(guest.read(4), 0);
    }
    drop(guest);
    drop(theirs);
    drop(host);
}
