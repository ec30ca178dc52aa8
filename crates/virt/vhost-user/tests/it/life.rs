//! Tests of whole sessions, in the order in which real front-ends send their messages: QEMU's virtio-net with
//! reconnection, as logged by `tests/qemu.rs` at level TRACE, and DPDK's virtio-user, as in its sources
//! (drivers/net/virtio).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::common::*;
use ringpass_port::MacAddress;
use ringpass_vhost_user::*;
use ringpass_virtio::features::{RING_PACKED, VERSION_1};

#[derive(Clone, Copy, PartialEq)]
enum Qemu {
    /// 7.2: asks for few acknowledgements, and shares memory once per queue pair.
    Old,
    /// 10 and 11: ask for acknowledgements of nearly everything, and reset the device when the guest does.
    New,
}

struct Guest {
    qemu: Qemu,
    bench: Bench,
    memory: OwnedFd,
    /// Whether the back-end has the guest's memory.
    shared: bool,
    /// Ring positions as QEMU remembers them.
    bases: [VringBase; 4],
}

impl Guest {
    fn start(qemu: Qemu) -> Self {
        Self { qemu, bench: Bench::new(), memory: memfd(MEMORY), shared: false, bases: [0; 4] }
    }

    /// Sends a request that newer versions want to have acknowledged.
    fn say(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) {
        match self.qemu {
            Qemu::Old => self.bench.tell(request, fds),
            Qemu::New => self.bench.done(request, fds),
        }
    }

    fn enable(&mut self, pairs: u32) {
        for index in 0..4 {
            self.say(&Request::SetVringEnable { index, on: index < 2 * pairs }, &[]);
        }
    }

    /// Connects as QEMU does: once per queue pair; the first pair handles what concerns the whole device.
    fn connect(&mut self) {
        self.shared = false;
        for pair in 0..2 {
            let bench = &mut self.bench;
            assert_eq!(bench.ask(&Request::GetFeatures, &[]), Reply::Number(OFFERED));
            assert_eq!(bench.ask(&Request::GetProtocolFeatures, &[]), Reply::Number(PROTOCOL));
            bench.tell(&Request::SetProtocolFeatures(PROTOCOL), &[]);
            if pair == 0 {
                assert_eq!(bench.ask(&Request::GetQueueNum, &[]), Reply::Number(2));
            }
            assert_eq!(bench.ask(&Request::GetMaxMemSlots, &[]), Reply::Number(64));
            if pair == 0 {
                bench.tell(&Request::SetOwner, &[]);
            }
            bench.ask(&Request::GetFeatures, &[]);
            for ring in [2 * pair, 2 * pair + 1] {
                // Interrupts are masked: nobody reads this eventfd.
                self.say(&Request::SetVringCall(fd_of(ring)), &[event().as_fd()]);
                self.say(&Request::SetVringErr(fd_of(ring)), &[event().as_fd()]);
            }
        }
        // The device is told which pairs are in use before a guest's driver runs.
        self.enable(1);
        assert!(self.bench.mock.running().is_empty());
    }

    /// Starts the rings, as when the guest's driver sets DRIVER_OK.
    fn up(&mut self, pairs: u32) {
        for pair in 0..pairs {
            self.bench.tell(&Request::SetFeatures(VERSION_1 | features::PROTOCOL_FEATURES), &[]);
            let Reply::Number(status) = self.bench.ask(&Request::GetStatus, &[]) else { panic!("a number") };
            if status & 8 == 0 {
                self.bench.tell(&Request::SetStatus(status | 8), &[]);
            }
            if !self.shared && (pair == 0 || self.qemu == Qemu::Old) {
                for at in [0, MEMORY / 2] {
                    self.bench.done(&Request::AddMemReg(region(at, MEMORY / 2, at)), &[self.memory.as_fd()]);
                }
            }
            for index in [2 * pair, 2 * pair + 1] {
                self.bench.tell(&Request::SetVringNum { index, num: 256 }, &[]);
                self.bench.tell(&Request::SetVringBase { index, base: self.bases[index as usize] }, &[]);
                self.bench.tell(&Request::SetVringAddr(address(index)), &[]);
                self.say(&Request::SetVringKick(fd_of(index)), &[event().as_fd()]);
                // Unmask interrupts.
                self.say(&Request::SetVringCall(fd_of(index)), &[event().as_fd()]);
            }
        }
        self.shared = true;
        self.bench.ask(&Request::GetStatus, &[]);
        self.bench.tell(&Request::SetStatus(0xf), &[]);
        self.enable(pairs);
        let state = self.bench.mock.state();
        for queue in 0..2 * pairs as usize {
            let Queue { running, enabled } = &state.queues[queue];
            let start = running.as_ref().expect("it runs");
            assert!(*enabled && start.kick.is_some() && start.call.is_some());
            assert_eq!(start.setup.base, self.bases[queue]);
        }
    }

    /// Stops the rings, as when the guest's driver resets its device. The back-end keeps the memory.
    fn down(&mut self, pairs: u32) {
        let bench = &mut self.bench;
        for index in 0..2 * pairs {
            let base = self.bases[index as usize] + 1;
            assert_eq!(bench.ask(&Request::GetVringBase { index }, &[]), Reply::VringBase { index, base });
        }
        bench.tell(&Request::SetStatus(0), &[]);
        if self.qemu == Qemu::New {
            bench.tell(&Request::ResetDevice, &[]);
        }
        self.bases = [0; 4];
        self.enable(1);
        assert!(self.bench.mock.running().is_empty());
    }
}

#[test]
fn qemu_with_reconnection() {
    for qemu in [Qemu::Old, Qemu::New] {
        let mut guest = Guest::start(qemu);
        guest.connect();
        // The firmware uses one pair, then the operating system both.
        guest.up(1);
        guest.down(1);
        guest.up(2);
        let bench = &mut guest.bench;
        bench.done(&Request::NetSetMtu(9000), &[]);
        assert_eq!(bench.mock.state().mtu, Some(9000));
        bench.refused_gently(&Request::NetSetMtu(60), &[]);
        bench.refused_gently(&Request::NetSetMtu(1 << 16), &[]);
        // Memory is plugged in while rings run, and interrupts are masked and unmasked hundreds of times.
        let dimm = memfd(MEMORY);
        for _ in 0..2 {
            bench.done(&Request::AddMemReg(region(1 << 32, MEMORY, 0)), &[dimm.as_fd()]);
        }
        for _ in 0..100 {
            bench.tell(&Request::SetVringCall(fd_of(1)), &[event().as_fd()]);
        }
        assert_eq!(bench.mock.running(), [0, 1, 2, 3]);
        for _ in 0..2 {
            bench.done(&Request::RemMemReg(region(1 << 32, MEMORY, 0)), &[dimm.as_fd()]);
        }
        // From now on the guest uses one pair only.
        for index in [2, 3] {
            bench.tell(&Request::SetVringEnable { index, on: false }, &[]);
        }
        assert!(bench.mock.state().queues[1].enabled && !bench.mock.state().queues[2].enabled);
        // The guest has migrated here.
        bench.tell(&Request::SendRarp([2, 0, 0, 0, 0, 7]), &[]);
        assert_eq!(bench.mock.state().announced, [MacAddress([2, 0, 0, 0, 0, 7])]);
        // The connection is lost without notice. QEMU reconnects and takes the positions from the used rings'
        // indices.
        drop(std::mem::replace(&mut bench.front, Front(std::os::unix::net::UnixStream::pair().unwrap().0)));
        assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Closed)));
        guest.bases = [17, 65535, 0, 255];
        guest.connect();
        guest.up(2);
        guest.bases = guest.bases.map(|base| base & 0xffff);
        guest.down(2);
    }
}

/// DPDK's virtio-user: one region per huge page, requests without acknowledgements until it negotiates them, and
/// packed rings whose base has no upper half.
#[test]
fn virtio_user() {
    let mut bench = Bench::new();
    bench.tell(&Request::SetOwner, &[]);
    bench.ask(&Request::GetFeatures, &[]);
    bench.ask(&Request::GetProtocolFeatures, &[]);
    bench.tell(&Request::SetProtocolFeatures(features::MQ | features::REPLY_ACK | features::STATUS), &[]);
    assert_eq!(bench.ask(&Request::GetQueueNum, &[]), Reply::Number(2));
    bench.done(&Request::SetStatus(0), &[]);
    for status in [1, 3] {
        bench.done(&Request::SetStatus(status), &[]);
        assert_eq!(bench.ask(&Request::GetStatus, &[]), Reply::Number(status));
    }
    for index in 0..2 {
        bench.tell(&Request::SetVringCall(fd_of(index)), &[event().as_fd()]);
    }
    let features = VERSION_1 | RING_PACKED | features::PROTOCOL_FEATURES;
    bench.tell(&Request::SetFeatures(features), &[]);
    bench.done(&Request::SetStatus(0xb), &[]);
    let files: Vec<OwnedFd> = (0..8).map(|_| memfd(MEMORY / 8)).collect();
    let table = |count: u64| (0..count).map(|i| region(i * (MEMORY / 8), MEMORY / 8, 0)).collect();
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    bench.done(&Request::SetMemTable(table(8)), &fds);
    for index in 0..2 {
        bench.tell(&Request::SetVringNum { index, num: 256 }, &[]);
        bench.tell(&Request::SetVringBase { index, base: 0x8000 }, &[]);
        bench.tell(&Request::SetVringAddr(packed(index)), &[]);
        bench.tell(&Request::SetVringKick(fd_of(index)), &[event().as_fd()]);
    }
    for index in 0..2 {
        bench.tell(&Request::SetVringEnable { index, on: true }, &[]);
    }
    bench.done(&Request::SetStatus(0xf), &[]);
    assert_eq!(bench.mock.running(), [0, 1]);
    assert_eq!(bench.mock.state().queues[0].running.as_ref().unwrap().setup.base, 0x8000_8000);
    // A page is given back to the system while rings run.
    bench.done(&Request::SetMemTable(table(7)), &fds[..7]);
    assert_eq!(bench.mock.running(), [0, 1]);
    for index in 0..2 {
        bench.tell(&Request::SetVringEnable { index, on: false }, &[]);
        assert_eq!(bench.ask(&Request::GetVringBase { index }, &[]), Reply::VringBase { index, base: 0x8001_8001 });
    }
    bench.done(&Request::SetStatus(0), &[]);
}

/// Returns the addresses of a ring whose parts lie within one of eight regions.
fn packed(index: u32) -> VringAddr {
    let at = USER + u64::from(index) * (MEMORY / 8);
    VringAddr { index, flags: 0, descriptors: at, available: at + PAGE, used: at + PAGE + 64 }
}

/// An old front-end without protocol features, whose rings are enabled when they start, and one that polls.
#[test]
fn without_protocol_features() {
    let mut bench = Bench::new();
    bench.tell(&Request::SetOwner, &[]);
    bench.tell(&Request::SetFeatures(0), &[]);
    let file = memfd(MEMORY);
    bench.tell(&Request::SetMemTable(vec![region(0, MEMORY, 0)]), &[file.as_fd()]);
    bench.tell(&Request::SetVringNum { index: 0, num: 8 }, &[]);
    bench.tell(&Request::SetVringAddr(address(0)), &[]);
    bench.tell(&Request::SetVringCall(VringFd { index: 0, polled: true }), &[]);
    bench.tell(&Request::SetVringKick(VringFd { index: 0, polled: true }), &[]);
    let state = bench.mock.state();
    let start = state.queues[0].running.as_ref().expect("it runs");
    assert!(state.queues[0].enabled && start.kick.is_none() && start.call.is_none());
    assert_eq!(start.setup.base, 0);
    drop(state);
    bench.tell(&Request::ResetOwner, &[]);
    assert!(!bench.mock.state().queues[0].enabled && bench.mock.running() == [0]);
    // Another kick restarts the ring at its position.
    bench.tell(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
    assert_eq!(bench.mock.state().queues[0].running.as_ref().unwrap().setup.base, 1);
}
