//! Tests of memory that is invalid, taken away or in use, and of inflight areas.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::common::*;
use ringpass_vhost_user::*;
use ringpass_virtio::features::{RING_PACKED, VERSION_1};
use rustix::fs::ftruncate;

/// Line 6 of the list of hostile inputs (`docs/security.md`). Every kind of invalid region, in a table and alone.
#[test]
fn regions_that_cannot_be() {
    let mut bench = Bench::new();
    let file = memfd(MEMORY);
    let good = region(0, MEMORY, 0);
    let top = u64::MAX - PAGE + 1;
    for bad in [
        Region { size: 0, ..good },
        Region { size: MEMORY + 1, ..good },
        Region { size: u64::MAX, ..good },
        Region { size: 1 << 41, ..good },
        Region { offset: PAGE, ..good },
        Region { offset: MEMORY, size: PAGE, ..good },
        Region { offset: top, size: PAGE, ..good },
        Region { offset: u64::MAX, size: 2, ..good },
        Region { guest: top, size: 2 * PAGE, ..good },
        Region { user: top, size: 2 * PAGE, ..good },
        Region { guest: u64::MAX, user: u64::MAX, size: u64::MAX, offset: u64::MAX },
    ] {
        bench.greet(VERSION_1);
        bench.refused(&Request::SetMemTable(vec![bad]), &[file.as_fd()]);
        bench.greet(VERSION_1);
        bench.refused(&Request::AddMemReg(bad), &[file.as_fd()]);
    }
    // Two regions side by side or overlapping, in the guest's or in the front-end's addresses.
    let [low, high] = [region(0, 2 * PAGE, 0), region(2 * PAGE, 2 * PAGE, 2 * PAGE)];
    for (other, fits) in [
        (high, true),
        (low, false),
        (Region { guest: PAGE, ..high }, false),
        (Region { user: USER + PAGE, ..high }, false),
        (Region { user: USER, ..high }, false),
        (Region { guest: 1 << 40, user: 1 << 40, ..high }, true),
    ] {
        let table = Request::SetMemTable(vec![low, other]);
        let files = [file.as_fd(), file.as_fd()];
        bench.greet(VERSION_1);
        if fits {
            bench.done(&table, &files);
            // The same region again is accepted; another file at the same place is not.
            bench.done(&Request::AddMemReg(other), &[file.as_fd()]);
            assert_eq!(bench.mock.state().memory.as_ref().unwrap().regions().len(), 2);
            bench.refused(&Request::AddMemReg(other), &[memfd(MEMORY).as_fd()]);
            bench.greet(VERSION_1).done(&table, &files);
            bench.refused(&Request::AddMemReg(Region { offset: 0, ..other }), &[file.as_fd()]);
        } else {
            bench.refused(&table, &files);
            bench.greet(VERSION_1).done(&Request::SetMemTable(vec![low]), &[file.as_fd()]);
            bench.refused(&Request::AddMemReg(Region { offset: 4 * PAGE, ..other }), &[file.as_fd()]);
        }
    }
    // More regions than a table may have; and none, which is valid.
    let mut nine = Request::SetMemTable(vec![region(0, PAGE, 0); 9]).to_bytes();
    for count in [9, 255, u32::MAX] {
        nine[..4].copy_from_slice(&count.to_ne_bytes());
        bench.front.send(&message(Command::SetMemTable as u32, Kind::Request, &nine), &[]);
        assert!(bench.ended().to_string().contains(&format!("{count} memory regions")));
    }
    bench.greet(VERSION_1).done(&Request::SetMemTable(vec![]), &[]);
}

/// Line 6. The largest number of regions can be added one by one; the next is refused, and the others stay.
#[test]
fn too_many_regions() {
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    let Reply::Number(most) = bench.ask(&Request::GetMaxMemSlots, &[]) else { panic!("a number") };
    let file = memfd(PAGE);
    for i in 0..most {
        bench.done(&Request::AddMemReg(region(i * PAGE, PAGE, 0)), &[file.as_fd()]);
    }
    bench.refused_gently(&Request::AddMemReg(region(most * PAGE, PAGE, 0)), &[file.as_fd()]);
    bench.mock.touch();
    assert_eq!(bench.mock.state().memory.as_ref().unwrap().regions().len() as u64, most);
    for i in 0..most {
        bench.done(&Request::RemMemReg(region(i * PAGE, PAGE, 0)), &[]);
        bench.done(&Request::RemMemReg(region(i * PAGE, PAGE, 0)), &[file.as_fd()]);
        assert_eq!(bench.mock.state().memory.as_ref().unwrap().regions().len() as u64, most - 1 - i);
    }
    bench.done(&Request::AddMemReg(region(0, PAGE, 0)), &[file.as_fd()]);
    for unlike in [region(PAGE, PAGE, 0), region(0, 2 * PAGE, 0), Region { user: 0, ..region(0, PAGE, 0) }] {
        bench.done(&Request::RemMemReg(unlike), &[]);
        assert_eq!(bench.mock.state().memory.as_ref().unwrap().regions().len(), 1);
    }
}

/// Line 6. Regions that would take up the addresses of this process, which other sessions need too. The files are
/// sparse.
#[test]
fn regions_that_are_too_large_in_all() {
    const MOST: u64 = 1 << 40;
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    let file = memfd(MOST);
    let half = |n: u64| region(n * MOST / 2, MOST / 2, n % 2 * MOST / 2);
    bench.done(&Request::AddMemReg(half(0)), &[file.as_fd()]);
    bench.done(&Request::AddMemReg(half(1)), &[file.as_fd()]);
    // QEMU 7.2 sends each region once for each pair of queues.
    bench.done(&Request::AddMemReg(half(1)), &[file.as_fd()]);
    bench.refused_gently(&Request::AddMemReg(half(2)), &[file.as_fd()]);
    bench.refused_gently(&Request::AddMemReg(region(MOST, PAGE, 0)), &[file.as_fd()]);
    let table = Request::SetMemTable(vec![half(0), half(1), half(2)]);
    bench.refused_gently(&table, &[file.as_fd(), file.as_fd(), file.as_fd()]);
    assert_eq!(bench.mock.state().memory.as_ref().unwrap().regions().len(), 2);
    bench.done(&Request::RemMemReg(half(0)), &[]);
    bench.done(&Request::AddMemReg(half(2)), &[file.as_fd()]);
}

/// Line 6. Changes of memory while rings run: regions with running rings must stay, others may go, and those that
/// stay are not mapped anew.
#[test]
fn memory_in_use() {
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    let file = bench.share();
    bench.start(0);
    let mapping = |bench: &Bench, at: usize| bench.mock.state().memory.as_ref().unwrap().regions()[at].memory.clone();
    let before = mapping(&bench, 0);
    let more = memfd(4 * PAGE);
    let added = region(1 << 32, 4 * PAGE, 0);
    bench.done(&Request::AddMemReg(added), &[more.as_fd()]);
    assert!(Arc::ptr_eq(&before, &mapping(&bench, 0)));
    // QEMU sends all regions again, in another order, through other descriptors of the same files.
    let again: [OwnedFd; 2] = [more.try_clone().unwrap(), file.try_clone().unwrap()];
    let second = mapping(&bench, 1);
    let files = [again[0].as_fd(), again[1].as_fd()];
    bench.done(&Request::SetMemTable(vec![added, region(0, MEMORY, 0)]), &files);
    assert!(Arc::ptr_eq(&before, &mapping(&bench, 0)) && Arc::ptr_eq(&second, &mapping(&bench, 1)));
    // The region of the running ring cannot be removed in any way.
    let words = bench.refused_gently(&Request::RemMemReg(region(0, MEMORY, 0)), &[]);
    assert!(words.contains("in no memory region"), "{words}");
    bench.refused_gently(&Request::SetMemTable(vec![]), &[]);
    bench.refused_gently(&Request::SetMemTable(vec![region(0, PAGE, 0)]), &[file.as_fd()]);
    bench.refused_gently(&Request::SetMemTable(vec![Region { user: 0, ..region(0, MEMORY, 0) }]), &[file.as_fd()]);
    assert!(Arc::ptr_eq(&before, &mapping(&bench, 0)));
    assert_eq!((bench.mock.running(), bench.mock.state().starts), (vec![0], 1));
    // Once the ring is stopped, the region can be removed; the ring's addresses are then invalid, even if they are
    // sent again.
    bench.ask(&Request::GetVringBase { index: 0 }, &[]);
    bench.done(&Request::RemMemReg(region(0, MEMORY, 0)), &[]);
    for again in [false, true] {
        if again {
            bench.prepare(0, 0);
        }
        let words = bench.refused_gently(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
        assert!(words.contains("in no memory region"), "{words}");
    }
    bench.done(&Request::AddMemReg(region(0, MEMORY, 0)), &[file.as_fd()]);
    bench.start(0);
    // Other regions can be removed while it runs.
    bench.done(&Request::RemMemReg(added), &[more.as_fd()]);
    bench.ask(&Request::GetVringBase { index: 0 }, &[]);
    bench.done(&Request::RemMemReg(region(0, MEMORY, 0)), &[]);
    assert!(bench.mock.state().memory.as_ref().unwrap().regions().is_empty());
}

/// Line 6. Regions that begin and end at any byte: the device sees the bytes that the file has there.
#[test]
fn regions_that_are_not_aligned() {
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    let file = memfd(MEMORY);
    for (guest, offset, size) in
        [(0, 1, PAGE), (1, 0, PAGE), (7, PAGE - 1, 2), (PAGE + 3, 5, MEMORY - 5), (0, MEMORY - 1, 1)]
    {
        let bytes = [0xa5, guest as u8 ^ 0x5a];
        rustix::io::pwrite(&file, &bytes[..1], offset).unwrap();
        rustix::io::pwrite(&file, &bytes[1..], offset + size - 1).unwrap();
        bench.done(&Request::SetMemTable(vec![region(guest, size, offset)]), &[file.as_fd()]);
        let state = bench.mock.state();
        let memory = state.memory.as_ref().unwrap();
        // SAFETY: `user` returned the address of one mapped byte of the region, whose file is still there.
        let at = |user: u64| memory.user(user, 1).map(|at| unsafe { at.cast::<u8>().read_volatile() });
        let first = if size == 1 { bytes[1] } else { bytes[0] };
        assert_eq!((at(USER + guest), at(USER + guest + size - 1)), (Some(first), Some(bytes[1])), "{guest:#x}");
        assert_eq!((at(USER + guest + size), guest.checked_sub(1).and_then(|before| at(USER + before))), (None, None));
        drop(state);
        bench.mock.touch();
    }
}

/// Regions of a PC: below and above the hole for devices, of one file, at offsets that are not at huge page
/// boundaries.
#[test]
fn regions_of_one_file() {
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    let file = memfd(64 << 20);
    let regions =
        vec![region(0, 0xa_0000, 0), region(0xc_0000, 0x100_0000, 0xc_0000), region(1 << 32, 16 << 20, 48 << 20)];
    rustix::io::pwrite(&file, b"here", 0xc_0000).unwrap();
    bench.done(&Request::SetMemTable(regions), &[file.as_fd(), file.as_fd(), file.as_fd()]);
    let state = bench.mock.state();
    let at = state.memory.as_ref().unwrap().user(USER + 0xc_0000, 4).unwrap();
    // SAFETY: `user` returned the address of four mapped bytes, and `state` keeps the mapping.
    assert_eq!(unsafe { at.cast::<[u8; 4]>().read() }, *b"here");
    drop(state);
    bench.mock.touch();
}

/// Line 6. A file that is truncated before it is used and while it is used.
#[test]
fn memory_that_is_taken_away() {
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    let file = bench.share();
    ftruncate(&file, PAGE).unwrap();
    bench.refused_gently(&Request::AddMemReg(region(1 << 32, MEMORY, 0)), &[file.as_fd()]);
    bench.mock.touch();
    assert!(matches!(bench.ended(), Ended::MemoryLost));
    bench.greet(VERSION_1);
    let file = bench.share();
    bench.start(0);
    ftruncate(&file, 0).unwrap();
    bench.goes_on();
    bench.mock.touch();
    assert!(matches!(bench.ended(), Ended::MemoryLost));
}

/// Line 8. An inflight area that is created here and passed back.
#[test]
fn areas_for_what_is_in_flight() {
    for (features, part) in [(VERSION_1, 16 + 16 * 256), (VERSION_1 | RING_PACKED, 32 + 32 * 256)] {
        let mut bench = Bench::new();
        bench.greet(features);
        bench.share();
        let asked = InflightArea { size: 0, offset: 0, queues: 4, queue_size: 256 };
        bench.front.send(&Request::GetInflightFd(asked).message(Kind::Request), &[]);
        bench.goes_on();
        let (reply, file) = receive_with_file(&bench.front);
        let Reply::Inflight(area) = reply else { panic!("{reply:?}") };
        let stride = u64::next_multiple_of(part, 64);
        assert_eq!(area, InflightArea { size: 4 * stride, ..asked });
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size as u64, area.size);
        assert!(ftruncate(&file, 0).is_err() && ftruncate(&file, 1 << 30).is_err(), "it stays as it is");
        bench.done(&Request::SetInflightFd(area), &[file.as_fd()]);
        bench.start(3);
        let state = bench.mock.state();
        let inflight = state.queues[3].running.as_ref().unwrap().setup.inflight.clone().unwrap();
        assert_eq!((inflight.offset as u64, inflight.len as u64), (3 * stride, part));
        drop(state);
        // A ring that has no room in the area.
        bench.done(&Request::SetVringNum { index: 1, num: 512 }, &[]);
        bench.done(&Request::SetVringAddr(VringAddr { used: USER + 40 * PAGE, ..address(4) }).at(1), &[]);
        bench.refused_gently(&Request::SetVringKick(fd_of(1)), &[event().as_fd()]);
    }
}

trait At {
    fn at(self, index: u32) -> Self;
}

impl At for Request {
    /// Returns the same request for another ring.
    fn at(self, index: u32) -> Self {
        let Self::SetVringAddr(address) = self else { panic!("{self:?}") };
        Self::SetVringAddr(VringAddr { index, ..address })
    }
}

fn receive_with_file(front: &Front) -> (Reply, OwnedFd) {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 100];
    let mut room = [std::io::IoSliceMut::new(&mut bytes)];
    let received = recvmsg(&front.0, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    let reply = Reply::parse(Command::GetInflightFd, &bytes[HEADER..received]).unwrap();
    assert_eq!(files.len(), 1);
    (reply, files.pop().unwrap())
}

/// Line 8. Invalid numbers, sizes and offsets of inflight areas.
#[test]
fn areas_that_cannot_be() {
    let mut bench = Bench::new();
    let file = memfd(MEMORY);
    let good = InflightArea { size: MEMORY, offset: 0, queues: 2, queue_size: 64 };
    for bad in [
        InflightArea { queues: 0, ..good },
        InflightArea { queues: 5, ..good },
        InflightArea { queues: u16::MAX, ..good },
        InflightArea { queue_size: 0, ..good },
        InflightArea { queue_size: 32769, ..good },
        InflightArea { queue_size: u16::MAX, queues: u16::MAX, ..good },
    ] {
        bench.greet(VERSION_1);
        bench.refused(&Request::GetInflightFd(bad), &[]);
        bench.greet(VERSION_1);
        bench.refused(&Request::SetInflightFd(bad), &[file.as_fd()]);
    }
    for bad in [
        InflightArea { size: 0, ..good },
        InflightArea { size: 2 * (16 + 16 * 64) - 1, ..good },
        InflightArea { offset: 1, ..good },
        InflightArea { offset: MEMORY, ..good },
        InflightArea { offset: u64::MAX, ..good },
        InflightArea { offset: u64::MAX - PAGE + 1, ..good },
        InflightArea { queue_size: 32768, ..good },
        InflightArea { queue_size: 32768, size: u64::MAX, ..good },
    ] {
        bench.greet(VERSION_1);
        bench.refused(&Request::SetInflightFd(bad), &[file.as_fd()]);
    }
    bench.greet(VERSION_1);
    bench.done(&Request::SetInflightFd(good), &[file.as_fd()]);
    // The area has room for split rings but not for packed rings of the same size.
    let tight = InflightArea { size: 4096 + 64, offset: 0, queues: 4, queue_size: 62 };
    bench.done(&Request::SetInflightFd(tight), &[file.as_fd()]);
    bench.done(&Request::SetFeatures(VERSION_1 | RING_PACKED | features::PROTOCOL_FEATURES), &[]);
    bench.share();
    bench.prepare(3, 0);
    bench.done(&Request::SetVringNum { index: 3, num: 62 }, &[]);
    bench.refused_gently(&Request::SetVringKick(fd_of(3)), &[event().as_fd()]);
}

/// Lines 1 and 6. Logs of written pages that cannot be, and one that is taken away.
#[test]
fn logs_that_cannot_be() {
    let mut bench = Bench::new();
    // 64 pages: a word.
    let (small, file, event) = (memfd(4), memfd(2 * PAGE), event());
    let log = |size, offset| Request::SetLogBase { size, offset };
    for (request, with) in [
        (log(0, 0), &file),
        (log(7, 0), &file),
        (log(8, 4), &file),
        (log(8, 2 * PAGE), &file),
        (log(3 * PAGE, 0), &file),
        (log(8, u64::MAX - 7), &file),
        (log(u64::MAX - 7, 0), &file),
        (log(u64::MAX - 7, u64::MAX - 7), &file),
        (log(16 << 30, 0), &file),
        (log(8, 0), &small),
        (log(8, 0), &event),
    ] {
        bench.greet(VERSION_1);
        bench.share();
        bench.refused(&request, &[with.as_fd()]);
    }
    // One without a file, and one that is too small for the guest's memory, from the first and later.
    bench.greet(VERSION_1);
    bench.refused(&log(8, 0), &[]);
    bench.greet(VERSION_1);
    let far = region(1 << 30, MEMORY, 0);
    bench.done(&Request::AddMemReg(far), &[memfd(MEMORY).as_fd()]);
    assert!(bench.refused(&log(8, 0), &[file.as_fd()]).contains("which ends at"));
    bench.greet(VERSION_1);
    bench.share();
    bench.done(&log(8, 8), &[file.as_fd()]);
    bench.refused_gently(&Request::AddMemReg(far), &[memfd(MEMORY).as_fd()]);
    // The front-end takes it away.
    bench.done(&Request::SetFeatures(VERSION_1 | features::PROTOCOL_FEATURES | features::LOG_ALL), &[]);
    let marked = bench.mock.state().log.clone().expect("a log");
    ftruncate(&file, 0).unwrap();
    marked.mark(0, MEMORY);
    assert!(matches!(bench.ended(), Ended::MemoryLost));
}

/// A log begins, is replaced, ends and begins again while rings run, which go on; the front-end reads the marks.
#[test]
fn a_log_of_written_pages() {
    let all = VERSION_1 | features::PROTOCOL_FEATURES | features::LOG_ALL;
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    bench.share();
    bench.start(0);
    let file = memfd(PAGE);
    let word = |at: u64| {
        let mut bytes = [0; 8];
        rustix::io::pread(&file, &mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    };
    // Features without a log, a log without features.
    bench.done(&Request::SetFeatures(all), &[]);
    assert!(bench.mock.state().log.is_none());
    bench.done(&Request::SetFeatures(all & !features::LOG_ALL), &[]);
    bench.done(&Request::SetLogBase { size: 8, offset: 64 }, &[file.as_fd()]);
    assert!(bench.mock.state().log.is_none());
    bench.done(&Request::SetLogFd, &[event().as_fd()]);
    bench.done(&Request::SetFeatures(all), &[]);
    // As QEMU does, it says the addresses again.
    bench.done(&Request::SetVringAddr(VringAddr { flags: 1, ..address(0) }), &[]);
    let log = bench.mock.state().log.clone().expect("a log");
    for (address, len) in
        [(0, 1), (2 * PAGE - 1, 1), (4 * PAGE - 1, 2), (10 * PAGE, 2 * PAGE), (63 * PAGE, PAGE), (20 * PAGE, 0)]
    {
        log.mark(address, len);
    }
    assert_eq!(word(64), 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 10 | 1 << 11 | 1 << 63);
    // Marks beyond the log have no place, and no effect.
    log.mark(64 * PAGE, PAGE);
    log.mark(u64::MAX, u64::MAX);
    log.mark(60 * PAGE, u64::MAX);
    assert_eq!((word(56), word(72), word(64) >> 60), (0, 0, 15));
    bench.done(&Request::SetLogBase { size: 16, offset: 128 }, &[file.as_fd()]);
    bench.mock.state().log.clone().expect("the other log").mark(64 * PAGE, 1);
    assert_eq!((word(128), word(136)), (0, 1));
    bench.done(&Request::SetFeatures(all & !features::LOG_ALL), &[]);
    assert!(bench.mock.state().log.is_none() && bench.mock.running() == [0]);
    bench.done(&Request::SetFeatures(all), &[]);
    assert!(bench.mock.state().log.is_some());
    assert_eq!(bench.mock.state().starts, 1, "the ring has run all the time");
}
