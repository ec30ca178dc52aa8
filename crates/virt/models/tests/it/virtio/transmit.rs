//! Frames from the driver's buffers to the wire (5.1.6.2).

use ringpass_virtio::features::*;

use crate::virtio::driver::*;
use crate::virtio::receive::RINGS;

#[test]
fn frames_go_out_whole_and_in_order_turn_after_turn() {
    for ring in RINGS {
        let mut driver = Driver::started(ring);
        for turn in 0..400 {
            let frames: Vec<_> = (0..7).map(|i| any_frame(60 + (turn * 37 + i * 100) % 1400)).collect();
            frames.iter().for_each(|frame| driver.put(1, &[], frame));
            assert_eq!(driver.step(), 0, "{ring:#x}: it was not notified");
            driver.notify(1);
            driver.step();
            assert_eq!(driver.sent(), frames, "{ring:#x}, turn {turn}: {:?}", driver.card.fault());
            let used = driver.used(1).expect("used");
            if ring & IN_ORDER != 0 {
                driver.pass(1, 7, 7);
                assert_eq!(driver.used(1), None, "{ring:#x}: {used:?} stands for all");
            } else {
                assert_eq!(driver.all_used(1).len(), 7);
            }
        }
        assert_eq!(driver.card.counters().tx_odd_headers, 0);
    }
}

#[test]
fn a_frame_may_lie_in_several_pieces_and_in_a_table() {
    for ring in RINGS {
        let mut driver = Driver::started(ring | INDIRECT_DESC);
        let frame = any_frame(600);
        let bytes = [&[0; 12], &frame[..]].concat();
        for indirect in [false, true, false, true] {
            let pieces: Vec<Piece> = [&bytes[..12], &bytes[12..13], &bytes[13..500], &bytes[500..]]
                .map(|part| driver.filled(1, part))
                .into();
            let count = if indirect { 1 } else { 4 };
            if indirect {
                let table = driver.table(1, &pieces);
                driver.post(1, &[table]);
            } else {
                driver.post(1, &pieces);
            }
            driver.notify(1);
            driver.step();
            assert_eq!(driver.sent(), [&frame[..]], "{ring:#x}: {:?}", driver.card.fault());
            assert!(driver.used(1).is_some());
            driver.pass(1, 1, count);
            assert_eq!(driver.used(1), None);
        }
    }
}
