//! Tests of frames between a guest and the port, on every kind of ring.

use crate::common::*;
use ringpass_memory::{Burst, MempoolConfig};
use ringpass_port::{Port, PortConfig};
use ringpass_virtio::features::*;

const PLAIN: [u8; 12] = [0; 12];

#[test]
fn frames_of_all_lengths_arrive_in_order() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        assert!(!rig.port.link().up && rig.receive(0).is_empty() && rig.send(0, &[frame(0, 60)]) == 1);
        guest.attach(&mut rig.device);
        assert!(rig.port.link().up);
        let lens = [14, 15, 31, 32, 33, 60, 63, 64, 65, 127, 128, 129, 512, 1513, 1514];
        for round in 0..40 {
            let frames: Vec<_> = lens.iter().map(|&len| frame(round, len)).collect();
            for frame in &frames {
                assert!(guest.send(0, PLAIN, frame, &[]), "{features:#x}: room for a frame");
            }
            assert_eq!(rig.frames(0), frames, "{features:#x}: from the guest");
            assert_eq!(guest.sent(0), lens.len());

            guest.offer_all(0);
            assert_eq!(rig.send(0, &frames), 0);
            let received = guest.received(0);
            let bytes: Vec<_> = received.iter().map(|(_, frame)| frame.clone()).collect();
            assert_eq!(bytes, frames, "{features:#x}: to the guest");
            let mut header = PLAIN;
            header[10] = u8::from(guest.header() == 12);
            assert!(received.iter().all(|(got, _)| *got == header));
        }
        let (stats, packets) = (rig.port.stats(), 40 * lens.len() as u64);
        let bytes = 40 * lens.iter().sum::<usize>() as u64;
        assert_eq!((stats.rx_packets, stats.rx_bytes, stats.rx_drops), (packets, bytes, 0));
        assert_eq!((stats.tx_packets, stats.tx_bytes, stats.tx_drops), (packets, bytes, 0));
        guest.detach(&mut rig.device);
        assert!(!rig.port.link().up);
        guest.reset();
    }
}

/// Line 15 of the list of hostile inputs (`docs/security.md`).
#[test]
fn frames_and_headers_may_be_split_anywhere() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        for cuts in [&[12][..], &[10], &[1], &[11, 1, 1], &[1; 15], &[26], &[12, 14, 20], &[500, 500, 500], &[5, 1000]]
        {
            let frame = frame(cuts[0], 1200);
            assert!(guest.send(0, PLAIN, &frame, cuts));
            assert_eq!(rig.frames(0), std::slice::from_ref(&frame), "{features:#x} {cuts:?}");
            assert_eq!(guest.sent(0), 1);
            // In the other direction, the guest offers pieces of these lengths and a last one that is long
            // enough.
            let lens: Vec<usize> = cuts.iter().copied().chain([1500]).collect();
            assert!(guest.offer(0, &lens));
            assert_eq!(rig.send(0, std::slice::from_ref(&frame)), 0);
            assert_eq!(guest.received(0)[0].1, frame, "{features:#x} {lens:?}");
        }
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

#[test]
fn frames_lie_in_as_many_buffers_as_they_take_on_both_sides() {
    let config = PortConfig { mtu: 9000, ..Default::default() };
    let short = MempoolConfig { buffers: BUFFERS, size: 256, ..Default::default() };
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::with_pool(&config, &short), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        for len in [256, 257, 1500, 2048, 4096, 9014] {
            let frame = frame(len, len);
            // An indirect table of the guest has 16 entries.
            assert!(guest.send(0, PLAIN, &frame, &[]));
            let packets = rig.receive(0);
            assert_eq!(packets[0].segments().count(), len.div_ceil(256));
            assert_eq!(bytes_of(&packets[0]), frame);
            assert_eq!(guest.sent(0), 1);

            if features & MRG_RXBUF != 0 {
                (0..40).for_each(|_| assert!(guest.offer(0, &[300])));
            } else {
                assert!(guest.offer(0, &[2048; 5]));
            }
            assert_eq!(rig.send(0, std::slice::from_ref(&frame)), 0);
            let (header, got) = guest.received(0).remove(0);
            assert_eq!(got, frame, "{features:#x} {len}");
            if features & MRG_RXBUF != 0 {
                assert_eq!(usize::from(header[10]), (len + 12).div_ceil(300));
                // Fill the remaining buffers, so that the next round begins with none.
                let rest = 40 - usize::from(header[10]);
                let small: Vec<_> = (0..rest).map(|i| crate::common::frame(i, 60)).collect();
                assert_eq!(rig.send(0, &small), 0);
                assert_eq!(guest.received(0).len(), rest);
            }
        }
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

/// Line 16 of the list of hostile inputs (`docs/security.md`).
#[test]
fn what_a_guest_may_not_send_is_dropped_and_counted() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        let tagged = |len| {
            let mut frame = frame(1, len);
            frame[12..14].copy_from_slice(&[0x81, 0]);
            frame
        };
        let wrong = [frame(0, 1515), tagged(1519), vec![7; 13], vec![7; 1], frame(0, 9000)];
        for frame in wrong.iter().chain([&vec![]]) {
            assert!(guest.send(0, PLAIN, frame, &[]));
            assert!(guest.send(0, PLAIN, &crate::common::frame(5, 60), &[]));
            assert_eq!(rig.frames(0), [crate::common::frame(5, 60)], "{features:#x}, after one of {}", frame.len());
        }
        assert!(guest.send(0, PLAIN, &tagged(1518), &[]));
        assert_eq!(rig.frames(0), [tagged(1518)]);
        assert_eq!(rig.port.stats().rx_drops, 6);
        assert_eq!(rig.fault(), None);

        // The same from the port to the guest.
        guest.offer_all(0);
        let more = [frame(0, 1515), tagged(1519), frame(3, 1514), tagged(1518)];
        assert_eq!(rig.send(0, &more), 0);
        let frames: Vec<_> = guest.received(0).into_iter().map(|(_, frame)| frame).collect();
        assert_eq!(frames, more[2..]);
        assert_eq!(rig.port.stats().tx_drops, 2);
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

#[test]
fn without_buffers_packets_wait_at_the_sender() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        (0..5).for_each(|_| assert!(guest.offer(0, &[1600])));
        let frames: Vec<_> = (0..9).map(|i| frame(i, 100 + i)).collect();
        assert_eq!(rig.send(0, &frames), 4, "{features:#x}");
        assert_eq!(guest.received(0).len(), 5);
        if features & MRG_RXBUF != 0 {
            // The only available buffer, half of what the frame needs, stays available.
            assert!(guest.offer(0, &[700]));
            assert_eq!(rig.send(0, &[frame(1, 1200)]), 1);
            assert!(guest.received(0).is_empty());
            assert!(guest.offer(0, &[700]));
            assert_eq!(rig.send(0, &[frame(1, 1200)]), 0);
            assert_eq!(guest.received(0)[0].1, frame(1, 1200));
        } else {
            // Without MRG_RXBUF the frame never fits; the buffer is used for the next one.
            assert!(guest.offer(0, &[700]));
            assert_eq!(rig.send(0, &[frame(1, 1200), frame(2, 600)]), 0);
            assert_eq!(guest.received(0)[0].1, frame(2, 600));
            assert_eq!(rig.port.stats().tx_drops, 1);
        }
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

#[test]
fn a_dry_pool_leaves_frames_with_the_guest() {
    let few = MempoolConfig { buffers: 20, ..Default::default() };
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::with_pool(&PortConfig::default(), &few), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        let frames: Vec<_> = (0..50).map(|i| frame(i, 60 + i)).collect();
        frames.iter().for_each(|frame| assert!(guest.send(0, PLAIN, frame, &[])));
        let (mut got, mut burst) = (Vec::new(), Burst::new(32));
        while rig.queues[0].rx.rx_burst(&mut burst) > 0 {
            assert_eq!(rig.queues[0].rx.rx_burst(&mut burst), 0, "the pool is dry");
            got.extend(burst.drain().map(|packet| bytes_of(&packet)));
        }
        assert_eq!(got, frames, "{features:#x}");
        assert_eq!(guest.sent(0), 50);
        guest.detach(&mut rig.device);
        guest.reset();
    }
}
