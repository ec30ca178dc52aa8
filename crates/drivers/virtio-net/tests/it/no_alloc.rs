//! The packet path does not allocate, for any kind of ring, features and batch.

use crate::common::{Rig, frame};
use ringpass_memory::Burst;
use ringpass_models::virtio::VirtioConfig;
use ringpass_port::{Offloads, PortConfig};
use ringpass_testing::{CountingAllocator, allocator_calls};
use ringpass_virtio::features::*;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn forwarding_allocates_nothing() {
    let offloads = Offloads { checksum: true, tso: true, ..Offloads::default() };
    let usual = VirtioConfig::DEFAULT_FEATURES;
    for (features, offloads, mtu) in [
        (usual, Offloads::default(), 1500),
        (usual | RING_PACKED, Offloads::default(), 1500),
        (usual | RING_PACKED | IN_ORDER, Offloads::default(), 1500),
        (usual, Offloads::default(), 9000),
        (usual & !MRG_RXBUF, Offloads::default(), 9000),
        (usual & !INDIRECT_DESC, offloads, 1500),
        (usual | RING_PACKED, offloads, 1500),
        (usual & !(CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN), offloads, 1500),
    ] {
        for batch in [1, 7, 32, 256] {
            let config = PortConfig { rx_ring: 256, tx_ring: 256, offloads, mtu, ..Default::default() };
            let mut rig = Rig::new(&config, &VirtioConfig { features, mtu: 9710, ..Default::default() });
            let mut burst = Burst::new(batch);
            let (mut forwarded, mut calls) = (0, 0);
            while forwarded < 1000 {
                rig.wire.frames().to_card.extend((0..64).map(|n| frame(60 + n * (mtu / 70))));
                rig.step();
                loop {
                    let mut received = 0;
                    calls += allocator_calls(|| {
                        received = rig.queues[0].rx.rx_burst(&mut burst);
                        rig.queues[0].tx.tx_burst(&mut burst);
                        burst.clear();
                    });
                    forwarded += received;
                    rig.step();
                    if received == 0 {
                        break;
                    }
                }
            }
            assert_eq!(calls, 0, "features {features:#x}, MTU {mtu}, batches of {batch}");
        }
    }
}
