//! Commands of the control queue, and the filters that they set (5.1.6.5).

use ringpass_models::virtio::VirtioConfig;
use ringpass_virtio::features::*;

use crate::virtio::driver::*;
use crate::virtio::receive::RINGS;
use crate::wire::*;

const ALL: u64 = CTRL_VQ | CTRL_RX | CTRL_RX_EXTRA | CTRL_VLAN | CTRL_MAC_ADDR | MAC;
const OWN: [u8; 6] = [0x02, 0x1a, 0xf4, 0x10, 0x41, 1];
const OTHER: [u8; 6] = [2, 2, 2, 2, 2, 2];
const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];
const BROADCAST: [u8; 6] = [0xff; 6];

/// Returns which of these frames are received: own address, another one, a group's, broadcast.
fn passing(driver: &mut Driver) -> [bool; 4] {
    [OWN, OTHER, GROUP, BROADCAST].map(|to| {
        driver.arrive(&[frame(to, 60)]);
        driver.fill(0, 1);
        driver.receive().is_some()
    })
}

#[test]
fn addresses_are_filtered() {
    for ring in RINGS {
        let mut driver = Driver::started(ALL | ring);
        assert_eq!(passing(&mut driver), [true; 4], "until a driver says otherwise");
        assert_eq!(driver.command(0, 0, &[0]), Some(0));
        assert_eq!(passing(&mut driver), [true, false, false, true]);
        for (mode, expected) in [
            (1, [true, false, true, true]),
            (2, [true, true, false, true]),
            (3, [true, false, false, true]),
            (4, [false, false, false, true]),
            (5, [true, false, false, false]),
        ] {
            assert_eq!(driver.command(0, mode, &[1]), Some(0));
            assert_eq!(passing(&mut driver), expected, "mode {mode}");
            assert_eq!(driver.command(0, mode, &[0]), Some(0));
        }
        let lists = [&[1, 0, 0, 0][..], &OTHER, &[1, 0, 0, 0], &GROUP].concat();
        assert_eq!(driver.command(1, 0, &lists), Some(0));
        assert_eq!(passing(&mut driver), [true; 4]);
        assert_eq!(driver.command(1, 0, &[0; 8]), Some(0));
        assert_eq!(driver.command(1, 1, &OTHER), Some(0));
        assert_eq!(passing(&mut driver), [false, true, false, true]);
        assert_eq!((0..6).map(|i| driver.bar.read8(CONFIG + i)).collect::<Vec<_>>(), OTHER);
        assert_eq!(driver.card.fault(), None);
    }
}

#[test]
fn vlans_are_filtered_once_that_is_negotiated() {
    let tagged = [[&BROADCAST[..], &OTHER, &[0x81, 0, 0x20, 7], &[0; 50]].concat()];
    for (features, expected) in [(CTRL_VQ, [true, true]), (ALL, [false, true])] {
        let mut driver = Driver::started(features);
        driver.arrive(&tagged);
        let before = driver.receive().is_some();
        let added = driver.command(2, 0, &[7, 0]);
        assert_eq!(added, Some(if features == ALL { 0 } else { 1 }));
        driver.arrive(&tagged);
        assert_eq!([before, driver.receive().is_some()], expected);
        driver.command(2, 1, &[7, 0]);
        driver.arrive(&tagged);
        assert_eq!(driver.receive().is_some(), features != ALL);
    }
}

#[test]
fn commands_that_make_no_sense_fail() {
    let mut driver = Driver::started(ALL);
    for (class, command, data) in [
        (0, 0, &[][..]),
        (0, 0, &[1, 1]),
        (0, 6, &[1]),
        (1, 0, &[1, 0, 0, 0]),
        (1, 0, &[0xff; 8]),
        (1, 1, &[1, 2, 3]),
        (1, 2, &[]),
        (2, 0, &[0, 16]),
        (3, 0, &[]),
        (4, 0, &[1, 0]),
        (9, 9, &[1]),
    ] {
        assert_eq!(driver.command(class, command, data), Some(1), "{class} {command} {data:?}");
    }
    let counters = driver.card.counters();
    assert_eq!((counters.commands, counters.commands_failed, counters.faults), (11, 11, 0));
}

#[test]
fn pairs_of_queues_are_used_once_that_is_asked_for() {
    let config = VirtioConfig { features: CTRL_VQ | MQ, queue_pairs: 4, ..VirtioConfig::default() };
    for ring in RINGS {
        let mut driver = Driver::up(&VirtioConfig { features: config.features | ring, ..config }, 64);
        let flows: Vec<_> = (0..64).map(|i| frame([2, 0, 0, 0, i, 1], 60)).collect();
        driver.arrive(&flows[..32]);
        assert_eq!(driver.all_used(0).len(), 32);
        for (pairs, answer) in [(0, 1), (5, 1), (4, 0)] {
            assert_eq!(driver.command(4, 0, &[pairs, 0]), Some(answer));
        }
        driver.fill(0, 32);
        driver.arrive(&flows);
        let counts = [0, 2, 4, 6].map(|queue| driver.all_used(queue).len());
        assert!(counts.iter().sum::<usize>() == 64 && counts.iter().all(|&count| count > 4), "{counts:?}");
        // Replies to a flow come to the pair that the flow was sent from.
        for queue in [7, 3] {
            driver.put(queue, &[], &frame([2, 0, 0, 0, 9, 9], 60));
            driver.notify(queue);
            driver.step();
            assert_eq!(driver.sent().len(), 1);
            let mut answer = frame([2, 0, 0, 0, 0, 0xee], 60);
            answer[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
            driver.arrive(&[answer]);
            assert_eq!(driver.all_used(queue - 1).len(), 1, "{queue}");
        }
    }
}
