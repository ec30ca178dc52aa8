//! The packet path does not allocate, for any kind of ring, features and batch.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::common::{Rig, frame};
use ringpass_memory::Burst;
use ringpass_models::virtio::VirtioConfig;
use ringpass_port::{Offloads, PortConfig};
use ringpass_virtio::features::*;

struct Counting;

thread_local! {
    /// Allocator calls of this thread, while it counts them.
    static CALLS: Cell<Option<usize>> = const { Cell::new(None) };
}

fn count() {
    let _ = CALLS.try_with(|calls| calls.set(calls.get().map(|n| n + 1)));
}

// SAFETY: each call is passed unchanged to `System`, which fulfils the contract of `GlobalAlloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: `layout` is passed on unchanged, and the caller has upheld the contract of
        // `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: `memory` came from `System` by `alloc` above with this layout, by the contract of
        // `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
            let (mut forwarded, mut allocated) = (0, 0);
            while forwarded < 1000 {
                rig.frames.lock().unwrap().to_card.extend((0..64).map(|n| frame(60 + n * (mtu / 70))));
                rig.step();
                loop {
                    CALLS.set(Some(0));
                    let received = rig.queues[0].rx.rx_burst(&mut burst);
                    rig.queues[0].tx.tx_burst(&mut burst);
                    burst.clear();
                    allocated += CALLS.take().unwrap_or_default();
                    forwarded += received;
                    rig.step();
                    if received == 0 {
                        break;
                    }
                }
            }
            assert_eq!(allocated, 0, "features {features:#x}, MTU {mtu}, batches of {batch}");
        }
    }
}
