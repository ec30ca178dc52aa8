//! A virtio model without work sleeps on its thread, and every source of work wakes it.

use std::time::Duration;

use ringpass_models::Runner;
use ringpass_testing::poll_until;
use ringpass_virtio::features::*;

use crate::readable::{Readable, sleeps_for};
use crate::virtio::driver::{Driver, any_frame};

#[test]
fn wires_and_notifications_wake() {
    for ring in [0, EVENT_IDX, RING_PACKED, RING_PACKED | EVENT_IDX] {
        let mut driver = Driver::started(ring);
        let (wire, queues) = Readable::new();
        let runner = Runner::spawn(vec![(driver.card.clone(), queues)], None, ringpass_port::Idle::default());
        // More frames than there are buffers: from the 33rd on each frame waits for a buffer.
        for i in 1..=60usize {
            std::thread::sleep(Duration::from_millis(if i % 10 == 0 { 20 } else { 1 }));
            wire.arrive(any_frame(60));
            if i > 32 {
                std::thread::sleep(Duration::from_millis(1));
                assert_eq!(driver.receive(), None);
                driver.fill(0, 1);
            }
            poll_until("a frame from the wire", || driver.receive().is_some());
            driver.put(1, &[], &any_frame(60));
            driver.notify(1);
            poll_until("a frame from the driver", || wire.sent() == i);
        }
        sleeps_for(Duration::from_millis(300));
        drop(runner);
    }
}
