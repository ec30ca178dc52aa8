//! Rings that cannot be, and changes where nothing may change.

mod common;

use std::os::fd::AsFd;

use common::*;
use ringpass_vhost_user::*;
use ringpass_virtio::features::{EVENT_IDX, IN_ORDER, RING_PACKED, VERSION_1};

/// A session with memory, whose rings are of one kind.
fn bench(packed: bool) -> Bench {
    let mut bench = Bench::new();
    bench.greet(VERSION_1 | if packed { RING_PACKED } else { 0 });
    bench.share();
    bench
}

/// The kick that would start ring 0 is refused. Leaves a fresh session.
fn does_not_start(bench: &mut Bench, why: &str) {
    let words = bench.refused_gently(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
    assert!(words.contains(why), "{words}, not {why}");
    assert!(bench.toy.running().is_empty());
}

/// Line 4.
#[test]
fn sizes() {
    for packed in [false, true] {
        let mut bench = bench(packed);
        for num in [0, 32769, 65535, 65536, 65536 | 256, u32::MAX] {
            bench.refused_gently(&Request::SetVringNum { index: 0, num }, &[]);
        }
        bench.prepare(0, 0);
        // Three are fine in a packed ring (2.8), and the last word counts.
        bench.done(&Request::SetVringNum { index: 0, num: 32768 }, &[]);
        bench.done(&Request::SetVringNum { index: 0, num: 3 }, &[]);
        if packed {
            bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
            assert_eq!(bench.toy.state().queues[0].running.as_ref().unwrap().setup.size, 3);
        } else {
            does_not_start(&mut bench, "no power of two");
            // As large as there can be, which is more than there is memory.
            bench.done(&Request::SetVringNum { index: 0, num: 32768 }, &[]);
            does_not_start(&mut bench, "in no memory region");
        }
    }
}

/// Lines 4 and 18.
#[test]
fn positions() {
    let mut bench = bench(false);
    bench.prepare(0, 0x1_0000);
    does_not_start(&mut bench, "begins at 0x10000");
    bench.done(&Request::SetVringBase { index: 0, base: 0xffff }, &[]);
    bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
    assert_eq!(bench.toy.state().queues[0].running.as_ref().unwrap().setup.base, 0xffff);

    let mut bench = self::bench(true);
    for base in [256, 0x7fff, 0xffff, 0x8100] {
        bench.prepare(0, base);
        does_not_start(&mut bench, "that begins at");
    }
    // The upper half is not believed: what was used is what was available.
    for (told, taken) in [(0x8000, 0x8000_8000), (0x1234_80ff, 0x80ff_80ff), (0x7fff_0001, 0x1_0001)] {
        bench.prepare(0, told);
        bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
        assert_eq!(bench.toy.state().queues[0].running.as_ref().unwrap().setup.base, taken);
        assert_eq!(
            bench.ask(&Request::GetVringBase { index: 0 }, &[]),
            Reply::VringBase { index: 0, base: taken + 0x1_0001 }
        );
    }
}

/// Lines 4 and 6. Parts beside, before, across and behind the memory, and such that are not aligned.
#[test]
fn places() {
    for packed in [false, true] {
        let mut bench = bench(packed);
        let good = address(0);
        let part = if packed { 4 } else { 4 + 8 * 256 };
        let end = USER + MEMORY;
        for bad in [
            VringAddr { descriptors: 0, ..good },
            VringAddr { descriptors: USER - 16, ..good },
            VringAddr { descriptors: end - 16 * 256 + 16, ..good },
            VringAddr { descriptors: end, ..good },
            VringAddr { descriptors: u64::MAX - 15, ..good },
            // Where the guest has it, not where the front-end has it.
            VringAddr { descriptors: PAGE, ..good },
            VringAddr { descriptors: good.descriptors + 8, ..good },
            VringAddr { available: end - 2, ..good },
            VringAddr { available: u64::MAX - 1, ..good },
            VringAddr { available: good.available + 1, ..good },
            VringAddr { used: end - part + 4, ..good },
            VringAddr { used: u64::MAX - 3, ..good },
            VringAddr { used: good.used + 2, ..good },
        ] {
            bench.prepare(0, 0);
            bench.done(&Request::SetVringAddr(bad), &[]);
            does_not_start(&mut bench, "a ring with its");
        }
        // The last byte is the memory's last.
        bench.prepare(0, 0);
        bench.done(&Request::SetVringAddr(VringAddr { used: end - part, ..good }), &[]);
        bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
        // Logged writes are not offered.
        bench.refused_gently(&Request::SetVringAddr(VringAddr { flags: 1, ..address(1) }), &[]);
    }
    // The event index makes both of its rings longer.
    let mut bench = Bench::new();
    bench.greet(VERSION_1 | EVENT_IDX);
    bench.share();
    bench.prepare(0, 0);
    bench.done(&Request::SetVringAddr(VringAddr { used: USER + MEMORY - (4 + 8 * 256), ..address(0) }), &[]);
    does_not_start(&mut bench, "used ring");
}

/// Lines 4 and 5. While a ring runs it is not changed, nor is what it depends on; and it goes on as if nobody had asked.
#[test]
fn changes_while_it_runs() {
    for packed in [false, true] {
        let features = VERSION_1 | if packed { RING_PACKED } else { 0 };
        let mut bench = bench(packed);
        let file = memfd(MEMORY);
        bench.start(0);
        bench.done(&Request::SetVringEnable { index: 0, on: true }, &[]);
        let area = InflightArea { size: MEMORY, offset: 0, queues: 2, queue_size: 256 };
        for request in [
            Request::SetVringNum { index: 0, num: 256 },
            Request::SetVringNum { index: 0, num: 32768 },
            Request::SetVringBase { index: 0, base: 7 },
            Request::SetVringAddr(address(0)),
            Request::SetVringAddr(VringAddr { descriptors: u64::MAX, ..address(0) }),
            Request::SetFeatures((features ^ RING_PACKED) | features::PROTOCOL_FEATURES),
            Request::SetFeatures(features),
            Request::SetFeatures(0),
        ] {
            bench.refused_gently(&request, &[]);
        }
        bench.refused_gently(&Request::SetInflightFd(area), &[file.as_fd()]);
        // DPDK's front-end says again what holds already.
        bench.done(&Request::SetFeatures(features | features::PROTOCOL_FEATURES), &[]);
        bench.prepare(1, 0);
        assert_eq!((bench.toy.running(), bench.toy.state().starts), (vec![0], 1));
        assert!(bench.toy.state().queues[0].enabled);
        // And where it cannot be told, it loses its session.
        bench.front.send(&Request::SetVringNum { index: 0, num: 64 }.message(Kind::Request), &[]);
        assert!(bench.ended().to_string().contains("a change of ring 0 while it runs"));
    }
}

/// Line 5. Features that are not offered, and a kind of ring that changes when rings are set up already.
#[test]
fn features_of_the_device() {
    let mut bench = Bench::new();
    for bit in (0..64).filter(|bit| (FEATURES | features::PROTOCOL_FEATURES) & 1 << bit == 0) {
        bench.front.send(&Request::SetFeatures(1 << bit).message(Kind::Request), &[]);
        let why = bench.ended().to_string();
        assert!(why.contains(&format!("features {:#x}, which are not offered", 1u64 << bit)), "{why}");
    }
    bench.front.send(&Request::SetFeatures(FEATURES | IN_ORDER).message(Kind::Request), &[]);
    bench.ended();

    bench.greet(VERSION_1 | RING_PACKED);
    bench.share();
    bench.prepare(0, 0x8003);
    bench.done(&Request::SetVringNum { index: 0, num: 12 }, &[]);
    bench.done(&Request::SetFeatures(VERSION_1 | features::PROTOCOL_FEATURES), &[]);
    does_not_start(&mut bench, "no power of two");
    bench.done(&Request::SetFeatures(VERSION_1 | RING_PACKED | features::PROTOCOL_FEATURES), &[]);
    bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
    assert_eq!(bench.toy.running(), [0]);
}

/// A reset takes all rings; what comes in whatever order starts one when the last piece is there.
#[test]
fn any_order() {
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    bench.done(&Request::SetVringKick(fd_of(2)), &[event().as_fd()]);
    bench.done(&Request::SetVringAddr(address(2)), &[]);
    bench.done(&Request::SetVringEnable { index: 2, on: true }, &[]);
    bench.done(&Request::SetVringNum { index: 2, num: 64 }, &[]);
    assert!(bench.toy.running().is_empty(), "there is no memory");
    bench.share();
    assert_eq!(bench.toy.running(), [2]);
    assert!(bench.toy.state().queues[2].enabled);
    for index in [0, 1, 3] {
        bench.start(index);
    }
    bench.done(&Request::ResetDevice, &[]);
    assert!(bench.toy.running().is_empty() && !bench.toy.state().queues[2].enabled);
    // Nothing of them is known any more.
    bench.done(&Request::SetVringKick(fd_of(2)), &[event().as_fd()]);
    assert!(bench.toy.running().is_empty());
    bench.start(3);
    bench.done(&Request::SetStatus(0), &[]);
    assert!(bench.toy.running().is_empty());
    assert_eq!(bench.ask(&Request::GetVringBase { index: 3 }, &[]), Reply::VringBase { index: 3, base: 0 });
    bench.refused_gently(&Request::SetStatus(0x100), &[]);
    bench.done(&Request::SetStatus(0xf), &[]);
    assert_eq!(bench.ask(&Request::GetStatus, &[]), Reply::Number(0xf));
}

/// What the device finds in its rings ends the session, and the front-end's eventfd for that says so.
#[test]
fn broken_rings() {
    let mut bench = bench(false);
    let error = event();
    bench.done(&Request::SetVringErr(fd_of(0)), &[error.as_fd()]);
    bench.start(0);
    bench.toy.state().fault = Some("ring 0: a chain without an end".into());
    let ended = bench.ended();
    assert_eq!(ended.to_string(), "ring 0: a chain without an end");
    assert_eq!(bench.toy.state().ended, ["ring 0: a chain without an end"]);
    let mut counter = [0; 8];
    assert_eq!(rustix::io::read(&error, &mut counter), Ok(8));
}
