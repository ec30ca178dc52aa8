//! Frames from the wire to the driver's buffers (5.1.6.3, 5.1.6.4).

use ringpass_models::virtio::VirtioConfig;
use ringpass_virtio::features::*;

use crate::virtio::driver::*;

/// Kinds of rings that every behaviour is tested with.
pub const RINGS: [u64; 6] =
    [0, EVENT_IDX, IN_ORDER | INDIRECT_DESC, RING_PACKED, RING_PACKED | EVENT_IDX, RING_PACKED | IN_ORDER];

#[test]
fn frames_arrive_whole_and_in_order_turn_after_turn() {
    for ring in RINGS {
        let mut driver = Driver::started(MRG_RXBUF | ring);
        for turn in 0..400 {
            let frames: Vec<_> = (0..7).map(|i| any_frame(60 + (turn * 37 + i * 100) % 1400)).collect();
            driver.arrive(&frames);
            for frame in &frames {
                let received =
                    driver.receive().unwrap_or_else(|| panic!("{ring:#x}, turn {turn}: {:?}", driver.card.fault()));
                assert_eq!(&received.bytes, frame);
                assert_eq!(received.header, [&[0; 10][..], &[1, 0]].concat());
            }
            assert_eq!(driver.receive(), None);
            driver.fill(0, frames.len());
        }
        let counters = driver.card.counters();
        assert_eq!((counters.rx_packets, counters.faults, counters.dma_faults), (2800, 0, 0));
    }
}

#[test]
fn frames_wait_for_buffers_and_for_the_notification_of_them() {
    for ring in RINGS {
        let mut driver = Driver::started(ring);
        let frames: Vec<_> = (0..40).map(|i| any_frame(60 + i)).collect();
        driver.arrive(&frames);
        for frame in &frames[..32] {
            assert_eq!(&driver.receive().unwrap().bytes, frame);
        }
        assert_eq!(driver.receive(), None);
        (0..8).for_each(|_| driver.post_buffer(0, PLACE));
        while driver.step() > 0 {}
        assert_eq!(driver.receive(), None, "{ring:#x}: it was not notified");
        driver.notify(0);
        while driver.step() > 0 {}
        for frame in &frames[32..] {
            assert_eq!(&driver.receive().unwrap().bytes, frame);
        }
        assert_eq!(driver.card.fault(), None);
    }
}

#[test]
fn long_frames_lie_in_several_buffers_if_that_was_negotiated() {
    for ring in RINGS {
        let mut driver = Driver::up(&VirtioConfig { features: MRG_RXBUF | ring, ..VirtioConfig::default() }, 64);
        driver.arrive(&[any_frame(9000)]);
        let mut bytes = Vec::new();
        // 9,012 bytes in pages: two full ones, whose used entries a ring with IN_ORDER omits.
        let in_order = ring & IN_ORDER != 0;
        let lens: Vec<u32> = driver.all_used(0).into_iter().map(|(_, len)| len).collect();
        if in_order {
            assert_eq!(lens[0], 9012 - 2 * 4096, "only the last one has an entry, in the first one's place");
        } else {
            assert_eq!(lens, [4096, 4096, 9012 - 2 * 4096]);
            let places: Vec<usize> = (0..3).map(|id| driver.buffer(0, id)).collect();
            places.iter().zip(&lens).for_each(|(&at, &len)| bytes.extend(driver.read(at, len as usize)));
            assert_eq!(bytes[10..12], [3, 0]);
            assert_eq!(bytes[12..], any_frame(9000));
        }
        let mut driver = Driver::started(ring);
        driver.arrive(&[any_frame(9000), any_frame(100)]);
        assert_eq!(driver.receive().unwrap().bytes, any_frame(100));
        assert_eq!(driver.card.counters().rx_unfit, 1);
    }
}
