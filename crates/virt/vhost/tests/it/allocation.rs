//! Tests that the packet path allocates no memory.

use crate::common::*;
use ringpass_memory::Burst;
use ringpass_port::PortConfig;
use ringpass_testing::{CountingAllocator, allocator_calls};
use ringpass_virtio::features::*;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn bursts_allocate_nothing() {
    for features in FEATURES {
        let config = PortConfig { mtu: 9000, ..Default::default() };
        let (mut rig, mut guest) = (Rig::new(&config), Guest::new(features, 1, 256));
        guest.attach(&mut rig.device);
        let (mut there, mut back) = (Burst::new(256), Burst::new(256));
        let mut moved = 0;
        for round in 0..100 {
            // Plain frames, and frames that take several buffers on either side.
            let frames = (0..40).map(|i| frame(i, if i % 8 == 7 { 5000 } else { 60 + 10 * i }));
            for frame in frames {
                while !guest.send(0, [0; 12], &frame, &[12]) {
                    guest.sent(0);
                }
                there.push(rig.packet(&frame));
            }
            for _ in 0..60 {
                let _ = if features & MRG_RXBUF != 0 { guest.offer(0, &[2048]) } else { guest.offer(0, &[2048; 3]) };
            }
            rig.queues[0].rx.arm();
            let calls = allocator_calls(|| {
                moved += rig.queues[0].rx.rx_burst(&mut back);
                rig.queues[0].rx.disarm();
                moved += rig.queues[0].tx.tx_burst(&mut there);
                back.clear();
                there.clear();
            });
            assert!(calls == 0 || round == 0, "{features:#x}, round {round}");
            guest.sent(0);
            guest.received(0);
        }
        assert_eq!(moved, 8000, "{features:#x}");
        guest.detach(&mut rig.device);
        guest.reset();
    }
}
