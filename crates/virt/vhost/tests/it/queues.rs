//! Tests of several queue pairs and of wake-ups.

use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_port::{Direction, Holds, Idle, Port, PortConfig, WakeSource};
use ringpass_vhost_user::Device;
use ringpass_virtio::features::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PLAIN: [u8; 12] = [0; 12];

#[test]
fn queues_of_the_port_are_spread_over_those_that_the_guest_has() {
    let config = PortConfig { queues: 4, ..Default::default() };
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&config), Guest::new(features, 3, 16));
        assert_eq!(rig.device.queues(), 8);
        guest.attach(&mut rig.device);
        (0..3).for_each(|pair| guest.offer_all(pair));
        // Two of three pairs are enabled for receiving.
        rig.device.enable(2, false);
        for queue in 0..4 {
            assert_eq!(rig.send(queue, &[frame(queue, 60)]), 0);
        }
        let mut to = |pair| guest.received(pair).into_iter().map(|(_, frame)| frame).collect::<Vec<_>>();
        assert_eq!(to(0), [frame(0, 60), frame(2, 60)], "{features:#x}");
        assert_eq!((to(1), to(2)), (vec![], vec![frame(1, 60), frame(3, 60)]));
        // The port receives from all pairs.
        for pair in 0..3 {
            assert!(guest.send(pair, PLAIN, &frame(pair, 70), &[]));
            assert_eq!(rig.frames(pair), [frame(pair, 70)]);
        }
        rig.device.enable(0, false);
        rig.device.enable(4, false);
        assert_eq!(rig.send(3, &[frame(0, 60)]), 1);
        assert!(!rig.port.link().up);
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

#[test]
fn interrupts_come_only_when_they_are_wanted() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
        guest.attach(&mut rig.device);
        guest.offer_all(0);
        assert_eq!(rig.send(0, &[frame(0, 60)]), 0);
        assert!(guest.send(0, PLAIN, &frame(0, 60), &[]));
        rig.receive(0);
        assert_eq!((guest.calls(0), guest.calls(1)), (0, 0), "{features:#x}: not asked for");
        assert_eq!((guest.received(0).len(), guest.sent(0)), (1, 1));
        guest.arm(0);
        guest.arm(1);
        assert_eq!(rig.send(0, &[frame(0, 60), frame(1, 60)]), 0);
        assert!(guest.send(0, PLAIN, &frame(0, 60), &[]));
        rig.receive(0);
        assert_eq!((guest.calls(0), guest.calls(1)), (1, 1), "{features:#x}: once a burst");
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

fn awake(rig: &Rig) -> bool {
    let [WakeSource::Readable(fd)] = WakeSource::all(&*rig.queues[0].rx)[..] else { panic!("something to wait on") };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn a_guest_kicks_a_sleeper_and_nobody_else() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
        rig.queues[0].rx.arm();
        assert!(!awake(&rig));
        guest.attach(&mut rig.device);
        assert!(awake(&rig), "a guest has come");
        rig.queues[0].rx.disarm();
        assert!(!awake(&rig));
        assert!(guest.send(0, PLAIN, &frame(0, 60), &[]));
        assert_eq!(guest.kicks(1), 0, "{features:#x}: it polls");
        assert_eq!(rig.receive(0).len(), 1);
        guest.sent(0);
        for round in 0..20 {
            rig.queues[0].rx.arm();
            assert!(rig.receive(0).is_empty() && !awake(&rig));
            assert!(guest.send(0, PLAIN, &frame(round, 60), &[]));
            assert!(awake(&rig), "{features:#x}");
            assert_eq!(guest.kicks(1), 1);
            rig.queues[0].rx.disarm();
            assert!(!awake(&rig));
            assert_eq!(rig.frames(0), [frame(round, 60)]);
            guest.sent(0);
        }
        guest.offer_all(0);
        assert_eq!(guest.kicks(0), 0, "nobody waits for buffers");
        rig.device.disconnected("");
        assert!(awake(&rig), "a guest has left");
        guest.reset();
    }
}

#[test]
fn an_idle_port_sleeps() {
    let (mut rig, guest) = (Rig::new(&PortConfig::default()), Guest::new(VERSION_1 | RING_PACKED, 1, 16));
    guest.attach(&mut rig.device);
    let mut idle = Idle::new(false);
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let mut round = || {
        assert!(rig.receive(0).is_empty());
        let start = Instant::now();
        idle.after(0, &mut [&mut *rig.queues[0].rx]);
        start.elapsed()
    };
    // The worker falls asleep; from then on it wakes up ten times a second for its periodic checks.
    let (start, mut before, mut sleeps) = (Instant::now(), cpu(), 0);
    while sleeps < 5 {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not sleep");
        if round() > Duration::from_millis(90) {
            sleeps += 1;
        } else {
            (sleeps, before) = (0, cpu());
        }
    }
    assert!(cpu() - before < Duration::from_millis(20), "{:?}", cpu() - before);
    guest.detach(&mut rig.device);
    guest.reset();
}

#[test]
fn rings_of_the_guest_are_as_the_workers_have_seen_them() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 16));
        assert_eq!(rig.port.rings(), [], "no guest");
        guest.attach(&mut rig.device);
        guest.offer_all(0);
        assert_eq!(rig.send(0, &[frame(0, 60), frame(1, 60)]), 0);
        let rings = rig.port.rings();
        // Of packed rings, nothing tells how many descriptors are available.
        if features & RING_PACKED == 0 {
            let [tx, rx] = rings[..] else { panic!("two rings: {rings:?}") };
            assert_eq!((tx.direction, tx.holds, tx.descriptors, tx.head), (Direction::Tx, Holds::Buffers, 16, 2));
            assert!((1..=14).contains(&tx.posted), "{tx:?}");
            assert_eq!((rx.direction, rx.holds, rx.posted), (Direction::Rx, Holds::Frames, 0));
        } else {
            assert_eq!(rings, []);
        }
        guest.detach(&mut rig.device);
        assert_eq!(rig.port.rings(), [], "the guest has left");
        guest.reset();
    }
}
