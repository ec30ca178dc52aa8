//! Programs and the switch block, and wake each other.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::programs::*;
use ringpass_ipc::EventNotifier;
use ringpass_netmap::csb::Csb;
use ringpass_netmap_server::ServedPort;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Offset of the kernel's half of a CSB.
const PAGE: usize = 4096;

/// Returns a program's eventfd, and the notifier that signals it.
fn call() -> (OwnedFd, EventNotifier) {
    let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let signal = EventNotifier::new(event.try_clone().unwrap()).unwrap();
    (event, signal)
}

fn rung(event: &OwnedFd, wait: Duration) -> bool {
    let wait = Timespec::try_from(wait).unwrap();
    poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&wait)).unwrap() > 0
        && rustix::io::read(event, &mut [0; 8]).is_ok()
}

/// Waits for frames, blocked.
fn wait(program: &Program, event: &OwnedFd) -> Vec<Vec<u8>> {
    let start = Instant::now();
    loop {
        let frames = program.receive();
        if !frames.is_empty() {
            return frames;
        }
        if program.rx[0].arm().unwrap() {
            rung(event, Duration::from_secs(30));
        }
        program.rx[0].disarm();
        assert!(start.elapsed() < Duration::from_secs(20), "slept through a frame");
    }
}

#[test]
fn nobody_sleeps_through_a_frame() {
    const TRIPS: usize = 400;
    let mut vale = Vale::new();
    let [mut left, mut right] = [0, 1].map(|place| vale.open(place, pair(16)));
    let [(left_event, left_call), (right_event, right_call)] = [call(), call()];
    left.control.subscribe(1, 0b10, left_call);
    right.control.subscribe(7, 0b10, right_call);
    let _worker = Worker::new(vale.datapath.take().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            for len in 0..TRIPS {
                let frames = wait(&right, &right_event);
                assert_eq!(frames, [frame(mac(1), mac(0), 60 + len)]);
                // Now and then, once the switch is about to block.
                if len % 20 == 0 {
                    let csb = Csb::new(&right.csb, 0, PAGE, 2).unwrap();
                    let start = Instant::now();
                    while !csb.kern_needs_kick(0) {
                        assert!(start.elapsed() < Duration::from_secs(30), "the switch does not block");
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                right.send(&frame(mac(0), mac(1), 60 + len));
            }
        });
        let took: Vec<_> = (0..TRIPS)
            .map(|len| {
                let start = Instant::now();
                left.send(&frame(mac(1), mac(0), 60 + len));
                assert_eq!(wait(&left, &left_event), [frame(mac(0), mac(1), 60 + len)]);
                start.elapsed()
            })
            .collect();
        // A blocked thread that is not woken rechecks every 100 ms. Up to three quarters may be delayed by
        // other load.
        let quarter = |mut took: Vec<Duration>| {
            took.sort();
            took[took.len() / 4]
        };
        assert!(quarter(took.clone()) < Duration::from_millis(50), "{took:?}");
        let through_a_sleep = quarter(took.iter().copied().step_by(20).collect());
        assert!(through_a_sleep < Duration::from_millis(90), "{took:?}");
    });
    let kicks = left.kicks.load(Relaxed) + right.kicks.load(Relaxed);
    assert!(kicks > 0 && kicks <= 2 * TRIPS as u64, "{kicks}: one for a frame at most");
}

#[test]
fn programs_are_called_for_their_rings_only() {
    let mut vale = Vale::new();
    let [mut from, mut to] = [0, 1].map(|place| vale.open(place, pair(16)));
    let [(sent, sent_call), (received, received_call), (gone, gone_call)] = [call(), call(), call()];
    from.control.subscribe(1, 0b01, sent_call);
    to.control.subscribe(1, 0b10, received_call);
    to.control.subscribe(2, 0b10, gone_call);
    to.control.unsubscribe(2);
    let mut turn = || {
        from.send(&frame(BROADCAST, mac(0), 60));
        vale.work();
        from.sync();
        [&sent, &received, &gone].map(|event| rung(event, Duration::ZERO))
    };
    assert_eq!(turn(), [false; 3], "nobody wants to be called");
    assert_eq!(to.receive().len(), 1);
    assert!(to.rx[0].arm().unwrap());
    assert_eq!(turn(), [false, true, false]);
    to.rx[0].disarm();
    assert_eq!(turn(), [false; 3]);
    assert_eq!(to.receive().len(), 2);
    // Waits for room.
    let waits = &from.tx[0];
    waits.arm().unwrap();
    assert_eq!(turn(), [true, false, false]);
}
