//! Tests of pools that swap buffers: owner counts, hostile buffer numbers, threads.

#[path = "../../../../core/memory/tests/it/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use common::{cases, count, mark, number, take};
use proptest::prelude::*;
use ringpass_memory::{MAGAZINE, Packet, RegionConfig, SwapPoolConfig};
use ringpass_netmap::SharedPool;

const FRONT: usize = 4096;

/// Creates a pool of `buffers` buffers, of which the last `own` are the pool's.
fn exchange(buffers: usize, own: usize) -> Arc<SharedPool> {
    let region = RegionConfig::default();
    SharedPool::new(&SwapPoolConfig { front: FRONT, buffers, own, size: 64, region }).unwrap()
}

/// Returns the offset of the packet's frame in the region.
fn place(exchange: &SharedPool, packet: &Packet) -> usize {
    packet.as_ptr() as usize - exchange.pool().region().at(0) as usize
}

#[test]
fn a_frame_changes_hands_and_stays_where_it_lies() {
    let exchange = exchange(8, 2);
    assert_eq!((exchange.owner_counts(), exchange.buffers(), exchange.pool().outstanding(1)), ([6, 0, 2], 8, 0));
    let mut packet = exchange.pool().alloc().unwrap();
    assert_eq!((packet.headroom(), packet.capacity(), exchange.pool().buffer_size()), (0, 64, 64));
    mark(&mut packet, 7);
    let before = place(&exchange, &packet);
    assert!(exchange.alloc_external(3) && !exchange.alloc_external(3));
    let given = exchange.claim(3).unwrap().swap(&mut packet);
    assert_eq!(before, FRONT + given as usize * 64);
    assert_eq!((packet.len(), exchange.owner_counts(), exchange.pool().outstanding(1)), (0, [5, 1, 2], 1));
    mark(&mut packet, 8);
    assert_eq!(place(&exchange, &packet), FRONT + 3 * 64);
    // Swaps back: the first frame is where it was.
    let other = exchange.claim(given).unwrap().swap(&mut packet);
    packet.set_len(8);
    assert_eq!((other, number(&packet), place(&exchange, &packet)), (3, 7, before));
    drop(packet);
    assert!(exchange.free_external(3));
    assert_eq!((exchange.owner_counts(), exchange.pool().outstanding(1)), ([6, 0, 2], 0));
}

#[test]
fn what_is_not_theirs_is_not_taken() {
    let exchange = exchange(8, 2);
    for number in [0, 5, 6, 7, 8, u32::MAX] {
        assert!(exchange.claim(number).is_none(), "{number} is free, the pool's, or not there");
        assert!(!exchange.free_external(number) && exchange.free_external_linked(number).is_none());
    }
    assert!(!exchange.alloc_external(6) && !exchange.alloc_external(8) && exchange.alloc_external(1));
    let claim = exchange.claim(1).unwrap();
    assert!(exchange.claim(1).is_none() && !exchange.free_external(1), "somebody has it already");
    drop(claim);
    assert!(exchange.claim(1).is_some(), "not used, it is theirs again");
    assert!(
        exchange.alloc_external_linked(2, 77)
            && exchange.free_external_linked(2) == Some(77)
            && exchange.free_external_linked(2).is_none()
    );
    assert_eq!(exchange.owner_counts(), [5, 1, 2]);
}

#[test]
fn packets_that_cannot_be_exchanged() {
    let (one, other) = (exchange(8, 4), exchange(8, 2));
    let mut packet = one.pool().alloc().unwrap();
    assert!(one.can_swap(&packet) && !other.can_swap(&packet));
    mark(&mut packet, 1);
    assert!(packet.trim_front(2) && !one.can_swap(&packet));
    assert!(packet.prepend(2) && one.can_swap(&packet) && !packet.prepend(1));
    packet.append(one.pool().alloc().unwrap());
    assert!(!one.can_swap(&packet));
    assert!(one.alloc_external(0));
    let claimed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.claim(0).unwrap().swap(&mut packet)));
    assert!(claimed.is_err() && one.claim(0).is_some());
    drop(packet);
    assert_eq!((one.owner_counts(), one.pool().outstanding(1)), ([3, 1, 4], 0));
}

#[test]
fn what_cannot_be_is_refused() {
    let right = SwapPoolConfig { front: FRONT, buffers: 8, own: 2, size: 2048, region: RegionConfig::default() };
    assert!(SharedPool::new(&right).is_ok());
    for wrong in [
        SwapPoolConfig { front: FRONT + 64, ..right.clone() },
        SwapPoolConfig { own: 9, ..right.clone() },
        SwapPoolConfig { own: 0, ..right.clone() },
        SwapPoolConfig { size: 2000, ..right.clone() },
        SwapPoolConfig { size: 32, ..right.clone() },
        SwapPoolConfig { size: 32_768, ..right.clone() },
        SwapPoolConfig { buffers: 0, own: 0, ..right.clone() },
    ] {
        assert!(SharedPool::new(&wrong).is_err(), "{wrong:?}");
    }
}

/// A packet may outlive the `SharedPool` that its buffer is from.
#[test]
fn the_memory_stays_as_long_as_a_packet() {
    let exchange = exchange(4, 1);
    assert!(exchange.alloc_external(0));
    let mut packet = exchange.pool().alloc().unwrap();
    exchange.claim(0).unwrap().swap(&mut packet);
    mark(&mut packet, 5);
    drop(exchange);
    assert_eq!(number(&packet), 5);
}

proptest! {
    #![proptest_config(cases(200))]

    /// Names arbitrary buffers in arbitrary order, and compares with a plain model.
    #[test]
    fn owner_counts_balance(steps in prop::collection::vec((0_u8..5, 0_u32..12), 0..200)) {
        #[derive(Clone, Copy, PartialEq)]
        enum Of { Nobody, Them, Us }
        let exchange = exchange(10, 3);
        let mut owners = [Of::Nobody; 10];
        owners[7..].fill(Of::Us);
        let mut cache = exchange.pool().cache();
        let mut packets = take(&mut cache, 2);
        for (what, number) in steps {
            let is = |of| owners.get(number as usize) == Some(&of);
            match what {
                0 => prop_assert_eq!(exchange.alloc_external(number), is(Of::Nobody)),
                1 => prop_assert_eq!(exchange.free_external(number), is(Of::Them)),
                2 => prop_assert_eq!(exchange.claim(number).is_some(), is(Of::Them)),
                3 => prop_assert_eq!(exchange.free_external_linked(number).is_some(), is(Of::Them)),
                _ => {
                    let claim = exchange.claim(number);
                    prop_assert_eq!(claim.is_some(), is(Of::Them));
                    if let Some(claim) = claim {
                        let packet = packets.first_mut().expect("two");
                        let given = claim.swap(packet);
                        prop_assert!(owners[given as usize] == Of::Us);
                        (owners[given as usize], owners[number as usize]) = (Of::Them, Of::Us);
                        prop_assert_eq!(place(&exchange, packet), FRONT + 64 * number as usize);
                        packets.rotate_left(1);
                    }
                }
            }
            match what {
                0 if owners.get(number as usize) == Some(&Of::Nobody) => owners[number as usize] = Of::Them,
                1 | 3 if owners.get(number as usize) == Some(&Of::Them) => owners[number as usize] = Of::Nobody,
                _ => {}
            }
            let of = |of| owners.iter().filter(|&&one| one == of).count();
            prop_assert_eq!(exchange.owner_counts(), [of(Of::Nobody), of(Of::Them), 3]);
        }
        drop((packets, cache));
        prop_assert_eq!(exchange.pool().outstanding(1), 0);
    }
}

/// Threads with packets of their own keep naming all buffers, including each other's. What a thread has written
/// into its packet must not change until it gives the packet away, and no buffer is lost or duplicated.
#[test]
fn threads_that_name_each_others_buffers() {
    let (buffers, own, rounds) = (24, 16, count(100_000, 200));
    let exchange = exchange(buffers, own);
    (0..8).for_each(|number| assert!(exchange.alloc_external(number)));
    let swaps = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (exchange, swaps) = (&exchange, &swaps);
            scope.spawn(move || {
                // Other threads may hold all of the pool's packets for a moment.
                let alloc = || std::iter::repeat_with(|| exchange.pool().alloc()).flatten().next().expect("for ever");
                let mut packet = alloc();
                let mut state = thread;
                for round in 0..rounds as u64 {
                    let value = thread << 32 | round;
                    mark(&mut packet, value);
                    // Knuth's MMIX generator.
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let claim = exchange.claim((state >> 40) as u32 % (buffers as u32 + 1));
                    assert_eq!(number(&packet), value, "somebody else wrote into a packet");
                    if let Some(claim) = claim {
                        claim.swap(&mut packet);
                        swaps.fetch_add(1, Relaxed);
                    }
                    if round % 64 == 0 {
                        // Exchanges the packet through the depot, and so with other threads.
                        drop(packet);
                        packet = alloc();
                    }
                }
            });
        }
    });
    assert!(swaps.load(Relaxed) as usize > rounds / 10, "{swaps:?} exchanges");
    assert_eq!((exchange.owner_counts(), exchange.pool().outstanding(1)), ([0, 8, 16], 0));
    // Each of the pool's buffers is there once.
    let mut cache = exchange.pool().cache();
    let packets = take(&mut cache, MAGAZINE);
    let mut places: Vec<_> = packets.iter().map(|packet| place(&exchange, packet)).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), own);
}
