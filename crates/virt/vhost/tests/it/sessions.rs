//! Tests of guests that come, go, stop, migrate and break rules while packets pass.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;
use ringpass_memory::Burst;
use ringpass_port::{MacAddress, Port, PortConfig, State};
use ringpass_vhost_user::Device;
use ringpass_virtio::features::*;

const PLAIN: [u8; 12] = [0; 12];

fn extended(rig: &mut Rig, name: &str) -> u64 {
    rig.port.extended().into_iter().find(|(known, _)| *known == name).expect("a counter").1
}

#[test]
fn a_queue_that_is_stopped_goes_on_where_it_stood() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
        guest.attach(&mut rig.device);
        // The rounds take the indices around the ring more than once.
        for round in 0..20 {
            let frames: Vec<_> = (0..5).map(|i| frame(round + i, 60 + i)).collect();
            frames.iter().for_each(|frame| assert!(guest.send(0, PLAIN, frame, &[])));
            (0..5).for_each(|_| assert!(guest.offer(0, &[2000])));
            assert_eq!(rig.frames(0), frames, "{features:#x} {round}");
            assert_eq!(rig.send(0, &frames[..3]), 0);
            assert_eq!((guest.sent(0), guest.received(0).len()), (5, 3));
            let bases = guest.detach(&mut rig.device);
            assert_eq!(rig.send(0, &frames[3..]), 2, "no guest");
            for (queue, base) in bases.into_iter().enumerate() {
                guest.start(&mut rig.device, queue, base);
            }
            // The queues are still enabled.
            assert_eq!(rig.send(0, &frames[3..]), 0, "{features:#x} {round}");
            assert_eq!(guest.received(0).len(), 2);
        }
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

#[test]
fn a_guest_that_is_not_enabled_gets_nothing_and_what_it_sends_is_dropped() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
        guest.attach(&mut rig.device);
        (0..2).for_each(|queue| rig.device.enable(queue, false));
        guest.offer_all(0);
        assert!(guest.send(0, PLAIN, &frame(0, 60), &[]));
        assert!(!rig.port.link().up);
        assert_eq!(rig.send(0, &[frame(0, 60)]), 1);
        assert!(rig.receive(0).is_empty());
        assert_eq!((guest.sent(0), rig.port.stats().rx_drops), (1, 1));
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

#[test]
fn guests_come_one_after_the_other_and_may_agree_on_something_else() {
    let mut rig = Rig::new(&PortConfig::default());
    for (session, features) in FEATURES.into_iter().enumerate() {
        let mut guest = Guest::new(features, 1, 64);
        guest.attach(&mut rig.device);
        guest.offer_all(0);
        assert_eq!(rig.send(0, &[frame(session, 99)]), 0);
        assert_eq!(guest.received(0)[0].1, frame(session, 99));
        assert!(guest.send(0, PLAIN, &frame(session, 99), &[]));
        rig.device.disconnected("the guest has left");
        assert!(!rig.port.link().up && rig.receive(0).is_empty());
        assert!(matches!(rig.port.state(), State::Running));
        assert!(rig.port.notes().iter().any(|note| note.contains("the guest has left")));
        guest.reset();
    }
    assert_eq!(extended(&mut rig, "sessions"), FEATURES.len() as u64);
    assert_eq!(extended(&mut rig, "guest_faults"), 0);
}

/// Line 11 of the list of hostile inputs (`docs/security.md`), at the port.
#[test]
fn a_guest_that_breaks_a_ring_loses_its_session_and_nothing_else() {
    for features in FEATURES.into_iter().filter(|features| features & RING_PACKED == 0) {
        let mut rig = Rig::new(&PortConfig::default());
        for queue in 0..2 {
            let mut guest = Guest::new(features, 1, 16);
            guest.attach(&mut rig.device);
            assert!(guest.send(0, PLAIN, &frame(1, 60), &[]) && guest.offer(0, &[2000]) && guest.offer(0, &[2000]));
            // Set the available index far ahead.
            guest.poke(queue, Area::Driver, 2, 5000);
            let _ = rig.send(0, &[frame(1, 60)]);
            rig.receive(0);
            let why = rig.fault().expect("a fault");
            assert!(why.starts_with(&format!("queue {queue}: the guest made")), "{why}");
            // The queue stands still until the session ends.
            assert_eq!(rig.send(0, &[frame(1, 60)]), if queue == 0 { 1 } else { 0 });
            assert_eq!(rig.fault(), None);
            rig.device.disconnected(&why);
            guest.reset();
        }
        assert_eq!((extended(&mut rig, "guest_faults"), extended(&mut rig, "sessions")), (2, 2));
        let mut guest = Guest::new(features, 1, 16);
        guest.attach(&mut rig.device);
        assert!(guest.send(0, PLAIN, &frame(2, 60), &[]));
        assert_eq!(rig.frames(0), [frame(2, 60)]);
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

/// Lines 15 and 16 of the list of hostile inputs (`docs/security.md`).
#[test]
fn chains_that_are_shorter_than_a_header_end_the_session() {
    for features in FEATURES {
        for sends in [true, false] {
            let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
            guest.attach(&mut rig.device);
            if sends {
                assert!(guest.send(0, PLAIN, &frame(0, 60), &[]) && guest.offer(0, &[7]));
                assert_eq!(rig.send(0, &[frame(0, 60)]), 1);
            } else {
                // Send a truncated header.
                let short = guest.header() - 3;
                assert!(guest.send(0, PLAIN, &frame(0, 60), &[]) && guest.send_raw(0, &vec![0; short]));
            }
            let frames = rig.frames(0);
            assert_eq!(frames, [frame(0, 60)], "{features:#x}: what came before");
            assert!(rig.fault().is_some_and(|why| why.contains("too short for the header")));
            rig.device.disconnected("");
            guest.reset();
        }
    }
}

#[test]
fn memory_may_change_under_traffic() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        for round in 0..50 {
            let frames: Vec<_> = (0..9).map(|i| frame(round * 9 + i, 1000 + i)).collect();
            for frame in &frames {
                assert!(guest.send(0, PLAIN, frame, &[]) && guest.offer(0, &[2048]));
            }
            assert_eq!(rig.send(0, &frames[..4]), 0);
            // Regions that begin and end in the middle of buffers.
            let memory = guest.remap(4096 * (round % 60) + 100 * round);
            rig.device.set_memory(&memory).unwrap();
            assert_eq!(rig.frames(0), frames, "{features:#x} {round}");
            assert_eq!(rig.send(0, &frames[4..]), 0);
            let received: Vec<_> = guest.received(0).into_iter().map(|(_, frame)| frame).collect();
            assert_eq!((guest.sent(0), received), (9, frames));
        }
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

#[test]
fn another_back_end_goes_on_where_one_has_died() {
    for features in FEATURES {
        let mut guest = Guest::new(features, 1, 16);
        guest.track();
        for life in 0..12 {
            // The rig is dropped with its port and queues, without stopping the rings first.
            let mut rig = Rig::new(&PortConfig::default());
            guest.attach(&mut rig.device);
            assert_eq!(
                rig.frames(0),
                (0..life.min(5)).map(|i| frame(i, 60)).collect::<Vec<_>>(),
                "{features:#x} {life}"
            );
            guest.sent(0);
            guest.offer_all(0);
            let frames: Vec<_> = (0..7).map(|i| frame(i, 70)).collect();
            assert_eq!(rig.send(0, &frames), 0, "{features:#x} {life}");
            let received: Vec<_> = guest.received(0).into_iter().map(|(_, frame)| frame).collect();
            assert_eq!(received, frames, "{features:#x} {life}");
            // Frames for the next port.
            (0..(life + 1).min(5)).for_each(|i| assert!(guest.send(0, PLAIN, &frame(i, 60), &[])));
        }
        guest.reset();
    }
}

#[test]
fn queues_start_stop_and_move_while_another_thread_sends_and_receives() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        let Rig { queues, device, pool, port } = &mut rig;
        let mut queue = queues.remove(0);
        let stop = AtomicBool::new(false);
        let mut cache = pool.cache();
        guest.attach(device);
        let (sent, received) = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let (mut sent, mut received) = (0, Vec::new());
                let (mut there, mut back) = (Burst::new(8), Burst::new(32));
                while !stop.load(Ordering::Relaxed) || queue.rx.rx_burst(&mut back) > 0 {
                    cache.alloc(&mut there);
                    for packet in there.iter_mut() {
                        assert!(packet.is_empty() && packet.copy_from(&frame(7, 77)) || packet.len() == 77);
                    }
                    sent += queue.tx.tx_burst(&mut there);
                    queue.rx.rx_burst(&mut back);
                    received.extend(back.drain().map(|packet| bytes_of(&packet)));
                }
                (sent, received)
            });
            let (mut number, mut got) = (0, 0);
            for round in 0..400 {
                guest.offer_all(0);
                while number < (round + 1) * 10 && guest.send(0, PLAIN, &frame(number, 60 + number % 300), &[]) {
                    number += 1;
                }
                guest.sent(0);
                let frames = guest.received(0);
                assert!(frames.iter().all(|(_, got)| *got == frame(7, 77)));
                got += frames.len();
                match round % 4 {
                    0 => {
                        let memory = guest.remap(4096 * (round % 37));
                        device.set_memory(&memory).unwrap();
                    }
                    1 => {
                        for queue in 0..2 {
                            let base = device.stop(queue).unwrap();
                            guest.start(device, queue, base);
                        }
                    }
                    2 => {
                        device.enable(0, false);
                        device.enable(0, true);
                    }
                    _ => std::thread::yield_now(),
                }
            }
            while guest.sent(0) > 0 || got == 0 {
                got += guest.received(0).len();
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            let (sent, received) = worker.join().expect("the worker does not panic");
            got += guest.received(0).len();
            assert_eq!(received.len(), number, "{features:#x}: each frame once");
            assert!(received.iter().enumerate().all(|(i, got)| *got == frame(i, 60 + i % 300)), "in order");
            (sent, got)
        });
        assert_eq!(sent, received, "{features:#x}: to the guest, each once");
        assert_eq!(port.stats().rx_drops + port.stats().tx_drops, 0);
        assert!(device.fault().is_none());
        guest.detach(device);
        guest.reset();
    }
}

#[test]
fn a_session_gets_through_to_queues_of_busy_workers() {
    for features in [VERSION_1, VERSION_1 | RING_PACKED] {
        let (mut rig, guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        let Rig { queues, device, .. } = &mut rig;
        let (mut queue, stop) = (queues.remove(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut burst = Burst::new(32);
                while !stop.load(Ordering::Relaxed) {
                    queue.rx.rx_burst(&mut burst);
                }
            });
            // With an unfair lock, the worker would take it again and again and starve this thread.
            for _ in 0..2000 {
                let base = device.stop(1).unwrap();
                guest.start(device, 1, base);
            }
            stop.store(true, Ordering::Relaxed);
        });
        guest.detach(device);
        guest.reset();
    }
}

#[test]
fn an_announcement_comes_out_as_a_frame_in_the_guests_name() {
    let (mut rig, guest) = (Rig::new(&PortConfig::default()), Guest::new(VERSION_1, 1, 16));
    guest.attach(&mut rig.device);
    let mac = [2, 0, 0, 0, 0, 9];
    rig.device.announce(MacAddress(mac));
    let frames = rig.frames(0);
    assert_eq!(frames.len(), 1);
    assert_eq!((frames[0].len(), &frames[0][..6], &frames[0][6..12]), (60, &[0xff; 6][..], &mac[..]));
    assert_eq!(frames[0][12..14], [0x80, 0x35]);
    assert_eq!((&frames[0][22..28], &frames[0][32..38]), (&mac[..], &mac[..]));
    assert!(rig.receive(0).is_empty(), "once");
    guest.detach(&mut rig.device);
    guest.reset();
}

#[test]
fn the_guests_mtu_holds_for_what_it_gets() {
    let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(VERSION_1, 1, 16));
    guest.attach(&mut rig.device);
    guest.offer_all(0);
    rig.device.set_mtu(1000).unwrap();
    assert_eq!(rig.send(0, &[frame(0, 1015), frame(1, 1014)]), 0);
    assert_eq!(guest.received(0).len(), 1);
    assert_eq!(rig.port.stats().tx_drops, 1);
    for wrong in [0, 67, 1501, u16::MAX] {
        assert!(rig.device.set_mtu(wrong).unwrap_err().contains("MTU"), "{wrong}");
    }
    // The next guest has its own limits.
    rig.device.disconnected("");
    guest.reset();
    let mut guest = Guest::new(VERSION_1, 1, 16);
    guest.attach(&mut rig.device);
    guest.offer_all(0);
    assert_eq!(rig.send(0, &[frame(0, 1514)]), 0);
    assert_eq!((guest.received(0).len(), rig.port.stats().tx_drops), (1, 1));
    guest.detach(&mut rig.device);
    guest.reset();
}
