//! Tests of invalid rings, and of changes while rings run.

use std::os::fd::AsFd;

use crate::common::*;
use ringpass_ipc::EventNotifier;
use ringpass_vhost_user::*;
use ringpass_virtio::features::{EVENT_IDX, IN_ORDER, RING_PACKED, VERSION_1};

/// Creates a session with memory, for split or packed rings.
fn bench(packed: bool) -> Bench {
    let mut bench = Bench::new();
    bench.greet(VERSION_1 | if packed { RING_PACKED } else { 0 });
    bench.share();
    bench
}

/// Sends a kick for ring 0, whose start must be refused.
fn does_not_start(bench: &mut Bench, why: &str) {
    let words = bench.refused_gently(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
    assert!(words.contains(why), "{words}, not {why}");
    assert!(bench.mock.running().is_empty());
}

/// Line 4 of the list of hostile inputs (`docs/security.md`).
#[test]
fn sizes() {
    for packed in [false, true] {
        let mut bench = bench(packed);
        for num in [0, 32769, 65535, 65536, 65536 | 256, u32::MAX] {
            bench.refused_gently(&Request::SetVringNum { index: 0, num }, &[]);
        }
        bench.prepare(0, 0);
        // A packed ring may have three descriptors (2.8), and the last size sent counts.
        bench.done(&Request::SetVringNum { index: 0, num: 32768 }, &[]);
        bench.done(&Request::SetVringNum { index: 0, num: 3 }, &[]);
        if packed {
            bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
            assert_eq!(bench.mock.state().queues[0].running.as_ref().unwrap().setup.size, 3);
        } else {
            does_not_start(&mut bench, "not a power of two");
            // The largest ring is larger than the memory.
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
    assert_eq!(bench.mock.state().queues[0].running.as_ref().unwrap().setup.base, 0xffff);

    let mut bench = self::bench(true);
    for base in [256, 0x7fff, 0xffff, 0x8100] {
        bench.prepare(0, base);
        does_not_start(&mut bench, "that begins at");
    }
    // The upper half is ignored: the used position is set to the available position.
    for (told, taken) in [(0x8000, 0x8000_8000), (0x1234_80ff, 0x80ff_80ff), (0x7fff_0001, 0x1_0001)] {
        bench.prepare(0, told);
        bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
        assert_eq!(bench.mock.state().queues[0].running.as_ref().unwrap().setup.base, taken);
        assert_eq!(
            bench.ask(&Request::GetVringBase { index: 0 }, &[]),
            Reply::VringBase { index: 0, base: taken + 0x1_0001 }
        );
    }
}

/// Lines 4 and 6. Parts beside, before, across and behind the memory, and unaligned ones.
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
            // A guest address instead of a front-end address.
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
        // The ring's last byte is the last byte of the memory.
        bench.prepare(0, 0);
        bench.done(&Request::SetVringAddr(VringAddr { used: end - part, ..good }), &[]);
        bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
        // There is one flag, which asks for writes to be logged.
        bench.refused_gently(&Request::SetVringAddr(VringAddr { flags: 2, ..address(1) }), &[]);
        bench.done(&Request::SetVringAddr(VringAddr { flags: 1, ..address(1) }), &[]);
    }
    // The event index makes the available and the used ring longer.
    let mut bench = Bench::new();
    bench.greet(VERSION_1 | EVENT_IDX);
    bench.share();
    bench.prepare(0, 0);
    bench.done(&Request::SetVringAddr(VringAddr { used: USER + MEMORY - (4 + 8 * 256), ..address(0) }), &[]);
    does_not_start(&mut bench, "used ring");
}

/// Lines 4 and 5. Neither a running ring nor anything that it depends on can be changed; the ring continues.
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
            Request::SetVringAddr(VringAddr { descriptors: u64::MAX, ..address(0) }),
            Request::SetFeatures((features ^ RING_PACKED) | features::PROTOCOL_FEATURES),
            Request::SetFeatures(features),
            Request::SetFeatures(0),
        ] {
            bench.refused_gently(&request, &[]);
        }
        bench.refused_gently(&Request::SetInflightFd(area), &[file.as_fd()]);
        // DPDK's front-end repeats features that are already set.
        bench.done(&Request::SetFeatures(features | features::PROTOCOL_FEATURES), &[]);
        bench.prepare(1, 0);
        assert_eq!((bench.mock.running(), bench.mock.state().starts), (vec![0], 1));
        assert!(bench.mock.state().queues[0].enabled);
        // Without a request for acknowledgement, the session ends.
        bench.front.send(&Request::SetVringNum { index: 0, num: 64 }.message(Kind::Request), &[]);
        assert!(bench.ended().to_string().contains("a change of ring 0 while it runs"));
    }
}

/// Line 5. Features that are not offered, and a change of ring kind after rings have been set up.
#[test]
fn features_of_the_device() {
    let mut bench = Bench::new();
    for bit in (0..64).filter(|bit| OFFERED & 1 << bit == 0) {
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
    does_not_start(&mut bench, "not a power of two");
    bench.done(&Request::SetFeatures(VERSION_1 | RING_PACKED | features::PROTOCOL_FEATURES), &[]);
    bench.done(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
    assert_eq!(bench.mock.running(), [0]);
}

/// A reset stops all rings; whatever the order of messages, a ring starts with the last missing parameter.
#[test]
fn any_order() {
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    bench.done(&Request::SetVringKick(fd_of(2)), &[event().as_fd()]);
    bench.done(&Request::SetVringAddr(address(2)), &[]);
    bench.done(&Request::SetVringEnable { index: 2, on: true }, &[]);
    bench.done(&Request::SetVringNum { index: 2, num: 64 }, &[]);
    assert!(bench.mock.running().is_empty(), "there is no memory");
    bench.share();
    assert_eq!(bench.mock.running(), [2]);
    assert!(bench.mock.state().queues[2].enabled);
    for index in [0, 1, 3] {
        bench.start(index);
    }
    bench.done(&Request::ResetDevice, &[]);
    assert!(bench.mock.running().is_empty() && !bench.mock.state().queues[2].enabled);
    // Nothing of the rings is remembered.
    bench.done(&Request::SetVringKick(fd_of(2)), &[event().as_fd()]);
    assert!(bench.mock.running().is_empty());
    bench.start(3);
    bench.done(&Request::SetStatus(0), &[]);
    assert!(bench.mock.running().is_empty());
    assert_eq!(bench.ask(&Request::GetVringBase { index: 3 }, &[]), Reply::VringBase { index: 3, base: 0 });
    bench.refused_gently(&Request::SetStatus(0x100), &[]);
    bench.done(&Request::SetStatus(0xf), &[]);
    assert_eq!(bench.ask(&Request::GetStatus, &[]), Reply::Number(0xf));
}

/// A violation that the device finds in its rings ends the session and signals the front-end's error eventfd.
#[test]
fn broken_rings() {
    let mut bench = bench(false);
    let error = event();
    bench.done(&Request::SetVringErr(fd_of(0)), &[error.as_fd()]);
    bench.start(0);
    bench.mock.state().fault = Some("ring 0: a chain without an end".into());
    let ended = bench.ended();
    assert_eq!(ended.to_string(), "ring 0: a chain without an end");
    assert_eq!(bench.mock.state().ended, ["ring 0: a chain without an end"]);
    let mut counter = [0; 8];
    assert_eq!(rustix::io::read(&error, &mut counter), Ok(8));
}

/// An eventfd for which tens of thousands wait, so that each signal takes milliseconds.
#[test]
fn an_eventfd_that_takes_long_to_be_signalled() {
    let slow = ringpass_lab::SlowEventfd::new();
    let mut bench = bench(false);
    bench.start(0);
    bench.done(&Request::SetVringCall(fd_of(0)), &[slow.as_fd()]);
    let ended = (0..100).find_map(|_| {
        bench.mock.state().queues[0].running.as_ref().expect("it runs").call.iter().for_each(EventNotifier::notify);
        bench.turn()
    });
    assert!(matches!(ended, Some(Ended::SlowEventfd)), "{ended:?}");
}
