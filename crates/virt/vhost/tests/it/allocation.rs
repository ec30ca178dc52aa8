//! Tests that the packet path allocates no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::common::*;
use ringpass_memory::Burst;
use ringpass_port::PortConfig;
use ringpass_virtio::features::*;

/// Allocator that counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator, which keeps the contract of `GlobalAlloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: `layout` has a non-zero size by the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` was allocated with `layout` by `alloc`, which used `System`, by the contract of
        // `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn bursts_allocate_nothing() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get(), before + 1, "allocations are counted");

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
            let before = ALLOCATIONS.get();
            moved += rig.queues[0].rx.rx_burst(&mut back);
            rig.queues[0].rx.disarm();
            moved += rig.queues[0].tx.tx_burst(&mut there);
            back.clear();
            there.clear();
            assert!(ALLOCATIONS.get() == before || round == 0, "{features:#x}, round {round}");
            guest.sent(0);
            guest.received(0);
        }
        assert_eq!(moved, 8000, "{features:#x}");
        guest.detach(&mut rig.device);
        guest.reset();
    }
}
