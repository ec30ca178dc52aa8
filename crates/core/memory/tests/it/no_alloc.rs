//! Checks that the packet path does not allocate or free memory.

#![cfg(not(miri))] // The paths are those of the other tests, a million times over.

use std::mem::MaybeUninit;

use crate::common::pool;
use ringpass_memory::{Burst, Reclaimer};
use ringpass_testing::{CountingAllocator, allocator_calls};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_million_packets_without_the_heap() {
    let pool = pool(512, 2048);
    let mut cache = pool.cache();
    let mut reclaimer = Reclaimer::default();
    let mut packets = 0;
    let calls = allocator_calls(|| {
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
    let calls = allocator_calls(|| {
        for _ in 0..100 {
            cache.alloc(&mut burst);
            assert!(pool.alloc().is_none());
            burst.clear();
            burst.push(pool.alloc().unwrap());
        }
    });
    assert_eq!((calls, pool.exhausted()), (0, 200));
}
