//! Checks that the packet path does not allocate or free memory.

#![cfg(not(miri))] // The paths are those of the other tests, a million times over.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::MaybeUninit;

use crate::common::pool;
use ringpass_memory::{Burst, Reclaimer};

/// An allocator that counts the calls of each thread. Frees are counted too, because what is freed was allocated.
struct Counting;

thread_local!(static CALLS: Cell<u64> = const { Cell::new(0) });

// SAFETY: passes every call on to the system's allocator, which is a valid `GlobalAlloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller fulfils the contract of `GlobalAlloc::alloc`, which is also that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller fulfils the contract of `GlobalAlloc::dealloc`; `start` comes from `System.alloc`,
        // by `alloc` above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls_during(work: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

#[test]
fn a_million_packets_without_the_heap() {
    assert!(calls_during(|| drop(std::hint::black_box(Box::new(1)))) == 2, "the counter counts");
    let pool = pool(512, 2048);
    let mut cache = pool.cache();
    let mut reclaimer = Reclaimer::default();
    let mut packets = 0;
    let calls = calls_during(|| {
        while packets < 1_000_000 {
            let mut burst = Burst::new(64);
            cache.alloc(&mut burst);
            packets += burst.len();
            drop(burst.pop());
            // Like a queue: the buffers are moved out by copying and then given back.
            let sent: [_; 20] = std::array::from_fn(|_| MaybeUninit::new(burst.drain().next().unwrap().into_buffer()));
            // SAFETY: all of `sent` are initialised buffers, and they are not used again.
            unsafe { reclaimer.add(&sent) };
            let mut other = Burst::new(16);
            burst.drain().take(16).for_each(|packet| other.push(packet));
            other.clear();
            let mut more = Burst::new(256);
            cache.alloc(&mut more);
            packets += more.len();
        }
    });
    assert_eq!(calls, 0);
}

#[test]
fn an_empty_pool_without_the_heap() {
    let pool = pool(64, 64);
    let (mut cache, mut burst) = (pool.cache(), Burst::new(256));
    let calls = calls_during(|| {
        for _ in 0..100 {
            cache.alloc(&mut burst);
            assert!(pool.alloc().is_none());
            burst.clear();
            burst.push(pool.alloc().unwrap());
        }
    });
    assert_eq!((calls, pool.exhausted()), (0, 200));
}
