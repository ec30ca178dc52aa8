//! Tests of hostile frames, headers, kicks and calls: lines 10 and 15 to 17 of the list of hostile inputs
//! (`docs/security.md`). Hostile rings are tested in the crate `virtio`.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::*;
use ringpass_ipc::{EventNotifier, prepare_notifiers};
use ringpass_memory::{Burst, MempoolConfig};
use ringpass_port::{Offloads, Port, PortConfig, RxQueue, WakeSource};
use ringpass_testing::Stop;
use ringpass_vhost_user::{Device, Ended, QueueStart};
use ringpass_virtio::features::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FallocateFlags, fallocate};

const PLAIN: [u8; 12] = [0; 12];

/// Creates an eventfd in blocking mode.
fn waiting(count: u64) -> OwnedFd {
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    if count > 0 {
        rustix::io::write(&event, &count.to_ne_bytes()).unwrap();
    }
    event
}

/// Starts and enables both queues with these descriptors.
fn attach(guest: &Guest, device: &mut dyn Device, kick: Option<&OwnedFd>, call: &OwnedFd) {
    for queue in 0..2 {
        let start = QueueStart {
            setup: guest.setup(queue, guest.first_base()),
            memory: guest.memory.clone(),
            kick: kick.map(|kick| kick.try_clone().unwrap()),
            call: Some(EventNotifier::new(call.try_clone().unwrap()).unwrap()),
        };
        device.start(queue, start).unwrap();
        device.enable(queue, true);
    }
}

/// Fails the test if `what` takes longer than ten seconds.
fn within_ten_seconds(what: impl FnOnce() + Send + 'static) {
    let (done, end) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        what();
        done.send(()).unwrap();
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = end.recv_timeout(Duration::from_secs(10)) {
        panic!("it waits");
    }
    thread.join().unwrap();
}

fn awake(rx: &dyn RxQueue) -> bool {
    let [WakeSource::Readable(fd)] = WakeSource::all(rx)[..] else { panic!("something to wait on") };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

/// Eventfds for interrupts on which a plain write would block.
#[test]
fn line_10_calls_that_nobody_reads() {
    prepare_notifiers().unwrap();
    within_ten_seconds(|| {
        for features in FEATURES {
            let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
            let (kick, call) = (waiting(u64::MAX - 1), waiting(u64::MAX - 1));
            attach(&guest, &mut rig.device, Some(&kick), &call);
            for round in 0..100 {
                guest.arm(0);
                guest.arm(1);
                guest.offer_all(0);
                assert_eq!(rig.send(0, &[frame(round, 60)]), 0);
                assert!(guest.send_quietly(0, &frame(round, 61)));
                assert_eq!(rig.frames(0), [frame(round, 61)], "{features:#x}");
                assert_eq!((guest.received(0).len(), guest.sent(0)), (1, 1));
            }
            assert_eq!(rig.fault(), None);
            guest.detach(&mut rig.device);
            guest.reset();
        }
    });
}

/// Holes punched into much memory: a write to it waits until the kernel has punched them.
#[test]
fn a_guest_that_takes_its_memory_away_during_bursts_is_let_go() {
    /// A GiB, of which the kernel frees one in about 0.3 s.
    const BUFFERS: usize = 1 << 19;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::with_buffers(0, 1, 16, BUFFERS));
    guest.attach(&mut rig.device);
    let region = guest.pool.region().clone();
    let (mut bursts, mut fault) = (0, None);
    while fault.is_none() {
        assert!(bursts < 20, "{bursts} bursts in memory that was being taken away");
        fallocate(region.file().unwrap(), FallocateFlags::empty(), 0, region.len() as u64).unwrap();
        guest.offer_all(0);
        std::thread::scope(|scope| {
            scope.spawn(|| fallocate(region.file().unwrap(), hole, 0, region.len() as u64).unwrap());
            std::thread::sleep(Duration::from_millis(5));
            rig.send(0, &[frame(bursts, 60)]);
        });
        guest.received(0);
        bursts += 1;
        fault = rig.device.fault();
    }
    assert!(bursts >= 2, "a single long burst is forgiven");
    assert!(
        matches!(&fault, Some(Ended::SlowMemory(why)) if why.contains("waiting for the guest's memory")),
        "{fault:?}"
    );
    guest.reset();
}

/// A frame too large for the whole ring is dropped, and the number of buffers in the next frame's header is
/// right.
#[test]
fn line_15_more_buffers_than_a_ring_has() {
    for features in FEATURES.into_iter().filter(|features| features & MRG_RXBUF != 0) {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        // Buffers with room for a header and one byte.
        while guest.offer(0, &[13]) {}
        assert_eq!(rig.send(0, &[frame(0, 1514)]), 0, "{features:#x}: it never fits");
        assert_eq!((rig.port.stats().tx_drops, guest.received(0).len()), (1, 0));
        // A frame that fills all buffers of the ring to the last byte.
        let longest = 64 * 13 - 12;
        assert_eq!(rig.send(0, &[frame(1, longest + 1), frame(2, longest)]), 0);
        let (header, bytes) = guest.received(0).remove(0);
        assert_eq!((u16::from_le_bytes([header[10], header[11]]), bytes), (64, frame(2, longest)), "{features:#x}");
        assert_eq!((rig.port.stats().tx_drops, rig.fault()), (2, None));
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

/// Headers that change while they are read: the packet carries what was checked, or the frame is dropped.
#[test]
fn line_16_headers_that_flip() {
    const RIGHT: [u8; 12] = [1, 1, 54, 0, 100, 0, 34, 0, 16, 0, 0, 0];
    /// Invalid combinations of checksums, segments and header lengths for the frame.
    const WRONG: [[u8; 12]; 4] = [
        [1, 1, 54, 0, 0, 0, 34, 0, 16, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0xff, 0xff, 16, 0, 0, 0],
        [1, 4, 0xff, 0xff, 0xff, 0xff, 34, 0, 0xff, 0xff, 0, 0],
        [1, 1, 54, 0, 100, 0, 33, 0, 16, 0, 0, 0],
    ];
    let offers = VERSION_1 | CSUM | GUEST_CSUM | HOST_TSO4 | HOST_TSO6 | GUEST_TSO4 | GUEST_TSO6;
    let offloads = Offloads { checksum: true, tso: true, ..Default::default() };
    for features in [offers, offers | RING_PACKED] {
        let config = PortConfig { offloads, ..Default::default() };
        let mut rig = Rig::with_pool(&config, &MempoolConfig::default());
        // As many buffers as the ring has descriptors, so that all of them are always in the ring.
        let mut guest = Guest::with_buffers(features, 1, 64, 64);
        guest.attach(&mut rig.device);
        let (file, first) =
            (guest.pool.region().file().unwrap().try_clone_to_owned().unwrap(), guest.pool.region().iova(0));
        let stop = AtomicBool::new(false);
        let (mut believed, mut dropped) = (0, 0);
        let places = (0..64).map(|slot| {
            assert!(guest.send(0, PLAIN, &tcp(500), &[]));
            let words = (0..4).map(|word| guest.peek(1, Area::Descriptors, 16 * slot + 2 * word));
            words.rev().fold(0, |address, word| address << 16 | u64::from(word)) - first
        });
        let places: Vec<u64> = places.collect();
        assert_eq!((rig.receive(0).len(), guest.sent(0)), (64, 64));
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (at, wrong) in places.iter().zip(WRONG.iter().cycle()) {
                        rustix::io::pwrite(&file, wrong, *at).unwrap();
                        rustix::io::pwrite(&file, &RIGHT, *at).unwrap();
                    }
                }
            });
            for _ in 0..200_000 {
                (0..64).for_each(|_| assert!(guest.send(0, RIGHT, &tcp(500), &[])));
                let packets = rig.receive(0);
                for packet in &packets {
                    let (headers, mss) = (packet.headers(), packet.mss());
                    assert!(headers.is_none_or(|headers| headers.payload_start() == 54), "{features:#x}: {headers:?}");
                    assert!(mss.is_none_or(|mss| mss > 0 && headers.is_some()), "{features:#x}: {mss:?}");
                    assert_eq!(packet.total_len(), 554);
                }
                believed += packets.len();
                dropped = rig.port.stats().rx_drops;
                assert_eq!(guest.sent(0), 64);
                if believed > 2000 && dropped > 100 {
                    break;
                }
            }
        });
        assert!(believed > 2000 && dropped > 100, "{features:#x}: {believed} believed, {dropped} dropped");
        assert_eq!(rig.fault(), None);
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

/// A guest without a kick descriptor is polled. A guest that has one but does not kick gets its frames
/// received at the next poll.
#[test]
fn line_17_a_guest_that_never_kicks() {
    for features in FEATURES {
        let call = waiting(0);
        for kick in [None, Some(waiting(0))] {
            let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
            attach(&guest, &mut rig.device, kick.as_ref(), &call);
            rig.queues[0].rx.disarm();
            for round in 0..40 {
                rig.queues[0].rx.arm();
                assert!(guest.send_quietly(0, &frame(round, 60)));
                match kick {
                    None => assert!(matches!(WakeSource::all(&*rig.queues[0].rx)[..], [WakeSource::Polled])),
                    Some(_) => assert!(!awake(&*rig.queues[0].rx)),
                }
                assert_eq!(rig.frames(0), [frame(round, 60)], "{features:#x}");
                rig.queues[0].rx.disarm();
                guest.sent(0);
            }
            assert_eq!(rig.fault(), None);
            guest.detach(&mut rig.device);
            guest.reset();
        }
    }
}

/// A guest that kicks all the time without sending: the port wakes, finds nothing and sleeps again.
#[test]
fn line_17_a_guest_that_kicks_always() {
    within_ten_seconds(|| {
        for features in FEATURES {
            let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
            let (kick, call) = (waiting(0), waiting(0));
            attach(&guest, &mut rig.device, Some(&kick), &call);
            rig.queues[0].rx.disarm();
            for round in 0..100 {
                for count in [1, 7, 1 << 40] {
                    rig.queues[0].rx.arm();
                    rustix::io::write(&kick, &u64::to_ne_bytes(count)).unwrap();
                    assert!(awake(&*rig.queues[0].rx), "{features:#x}");
                    rig.queues[0].rx.disarm();
                    assert!(!awake(&*rig.queues[0].rx) && rig.receive(0).is_empty());
                }
                assert!(guest.send_quietly(0, &frame(round, 60)));
                assert_eq!(rig.frames(0), [frame(round, 60)]);
                guest.sent(0);
            }
            assert_eq!(rig.fault(), None);
            guest.detach(&mut rig.device);
            guest.reset();
        }
    });
}

/// Invalid frames count against the burst: a guest that sends only those, as fast as they are dropped, does
/// not keep its port busy. What a burst leaves is polled for without a kick.
#[test]
fn frames_that_are_dropped_fill_a_burst() {
    const RING: u16 = 256;
    let long = vec![0; 1519];
    for features in FEATURES {
        for bad in [&frame(0, 14)[..13], &long] {
            let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, RING));
            guest.attach(&mut rig.device);
            let mut sent = 0;
            while guest.posted(1) + 1 < RING.into() && guest.send(0, PLAIN, bad, &[]) {
                sent += 1;
            }
            assert!(sent > 100 && guest.send(0, PLAIN, &frame(1, 60), &[]), "{features:#x}");
            rig.queues[0].rx.arm();
            let mut burst = Burst::new(32);
            for turn in 1..=sent / 32 {
                assert_eq!(rig.queues[0].rx.rx_burst(&mut burst), 0);
                assert_eq!(rig.port.stats().rx_drops, 32 * turn, "{features:#x}: a burst's worth");
                assert!(
                    matches!(WakeSource::all(&*rig.queues[0].rx)[..], [WakeSource::Polled]),
                    "{features:#x}: there is more"
                );
            }
            assert_eq!(rig.queues[0].rx.rx_burst(&mut burst), 1, "{features:#x}");
            assert_eq!((bytes_of(&burst[0]), rig.port.stats().rx_drops), (frame(1, 60), sent));
            burst.clear();
            assert_eq!(rig.queues[0].rx.rx_burst(&mut burst), 0);
            assert!(
                matches!(WakeSource::all(&*rig.queues[0].rx)[..], [WakeSource::Readable(_)]),
                "{features:#x}: there is no more"
            );
            assert_eq!((guest.sent(0) as u64, rig.fault()), (sent + 1, None));
            guest.detach(&mut rig.device);
            guest.reset();
        }
    }
}

/// Sending to a guest ends, however many descriptors its chains have for a byte: a frame that does not fit
/// into all that a burst may read is dropped; one that merely comes late in a burst waits for the next one.
#[test]
fn buffers_of_single_bytes_use_up_a_burst() {
    const RING: u16 = 512;
    for ring in [0, RING_PACKED] {
        let features = VERSION_1 | MRG_RXBUF | INDIRECT_DESC | ring;
        let config = PortConfig { mtu: 9000, ..Default::default() };
        let mut rig = Rig::new(&config);
        let mut guest = Guest::with_buffers(features, 1, RING, 16 * usize::from(RING) + 64);
        guest.attach(&mut rig.device);
        while guest.offer(0, &[1; 16]) {}
        assert!(guest.posted(0) >= 400);
        // 16 descriptors for 16 bytes: a burst reads 4096 descriptors.
        assert_eq!(rig.send(0, &[frame(0, 5000)]), 0, "{features:#x}: it never fits");
        assert_eq!((rig.port.stats().tx_drops, guest.received(0).len()), (1, 0), "{features:#x}");
        let frames = [frame(1, 2500), frame(2, 2500)];
        assert_eq!(rig.send(0, &frames), 1, "{features:#x}: the second one waits");
        assert_eq!(rig.send(0, &frames[1..]), 0);
        let received: Vec<_> = guest.received(0).into_iter().map(|(_, frame)| frame).collect();
        assert!(received == frames, "{features:#x}");
        assert_eq!((rig.port.stats().tx_drops, rig.fault()), (1, None));
        guest.detach(&mut rig.device);
        guest.reset();
    }
}
