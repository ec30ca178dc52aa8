//! Compares mempools, caches and reclaimers with a model: the set of buffers that are out.

use std::collections::BTreeMap;

use crate::common::{cases, count, pool, reclaim, take};
use proptest::prelude::*;
use ringpass_memory::{
    Burst, Cache, Error, HEADROOM, MAGAZINE, Mempool, MempoolConfig, Packet, Reclaimer, RegionConfig,
};

#[derive(Clone, Debug)]
enum Step {
    /// Allocates from a cache.
    Alloc(usize, usize),
    /// Allocates from the pool itself.
    AllocOne,
    DropOne(usize),
    /// Drops this many packets in a burst.
    DropBurst(usize, usize),
    /// Drops this many packets on another thread.
    DropElsewhere(usize, usize),
    Reclaim(usize, usize),
    Flush,
    NewCache(usize),
}

fn step(most: usize) -> impl Strategy<Value = Step> {
    let (which, n) = (0..usize::MAX, 0..most);
    prop_oneof![
        6 => (0..3usize, n.clone()).prop_map(|(cache, n)| Step::Alloc(cache, n)),
        1 => Just(Step::AllocOne),
        3 => which.clone().prop_map(Step::DropOne),
        2 => (which.clone(), n.clone()).prop_map(|(at, n)| Step::DropBurst(at, n)),
        1 => (which.clone(), n.clone()).prop_map(|(at, n)| Step::DropElsewhere(at, n)),
        2 => (which, n).prop_map(|(at, n)| Step::Reclaim(at, n)),
        1 => Just(Step::Flush),
        1 => (0..3usize).prop_map(Step::NewCache),
    ]
}

/// The packets that are out, by the address of their buffer, each filled with a byte of its own.
#[derive(Default)]
struct Out {
    packets: BTreeMap<usize, (Packet, u8)>,
    fill: u8,
}

impl Out {
    /// Adds a packet, and checks that its buffer overlaps no other that is out.
    fn add(&mut self, mut packet: Packet) {
        assert!(packet.is_empty() && packet.headroom() == HEADROOM, "{packet:?} is not fresh");
        assert!(packet.prepend(HEADROOM));
        let (start, size) = (packet.as_ptr() as usize, packet.capacity());
        packet.set_len(size);
        self.fill = self.fill.wrapping_add(1);
        packet.write(0, &vec![self.fill; packet.len()]);
        if let Some((before, (other, _))) = self.packets.range(..=start).next_back() {
            assert!(before + other.len() <= start, "{packet:?} lies in {other:?}");
        }
        if let Some((after, (other, _))) = self.packets.range(start..).next() {
            assert!(start + size <= *after, "{other:?} lies in {packet:?}");
        }
        self.packets.insert(start, (packet, self.fill));
    }

    /// Removes a packet, and checks that nobody wrote to its buffer.
    fn remove(&mut self, at: usize) -> Option<Packet> {
        let start = *self.packets.keys().nth(at % self.packets.len().max(1))?;
        let (packet, fill) = self.packets.remove(&start).unwrap();
        assert!(packet.to_vec() == vec![fill; packet.len()], "{packet:?} was written to");
        Some(packet)
    }

    fn remove_some(&mut self, at: usize, n: usize) -> Burst {
        let mut burst = Burst::new(n);
        while burst.room() > 0
            && let Some(packet) = self.remove(at)
        {
            burst.push(packet);
        }
        burst
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn no_buffer_is_lost_or_given_twice(
        buffers in 1..count(300, 150),
        steps in prop::collection::vec(step(count(200, 40)), 1..count(120, 20)),
    ) {
        let pool = pool(buffers, 64);
        let mut caches: Vec<Cache> = (0..3).map(|_| pool.cache()).collect();
        let mut reclaimer = Reclaimer::default();
        let mut out = Out::default();
        for step in steps {
            match step {
                Step::Alloc(cache, n) if n <= MAGAZINE => {
                    let taken = take(&mut caches[cache], n);
                    prop_assert!(taken.len() <= n);
                    taken.into_iter().for_each(|packet| out.add(packet));
                }
                Step::Alloc(cache, n) => {
                    let mut burst = Burst::new(n);
                    let before = pool.exhausted();
                    caches[cache].alloc(&mut burst);
                    prop_assert_eq!(pool.exhausted() - before, u64::from(burst.len() < n));
                    burst.drain().for_each(|packet| out.add(packet));
                }
                Step::AllocOne => {
                    let before = pool.exhausted();
                    let packet = pool.alloc();
                    prop_assert_eq!(pool.exhausted() - before, u64::from(packet.is_none()));
                    if packet.is_none() {
                        prop_assert_eq!(pool.outstanding(4), buffers, "dry, but some are in the depot");
                    }
                    packet.into_iter().for_each(|packet| out.add(packet));
                }
                Step::DropOne(at) => drop(out.remove(at)),
                Step::DropBurst(at, n) => drop(out.remove_some(at, n)),
                Step::DropElsewhere(at, n) => {
                    let burst = out.remove_some(at, n);
                    std::thread::spawn(move || drop(burst)).join().unwrap();
                }
                Step::Reclaim(at, n) => reclaim(&mut reclaimer, out.remove_some(at, n).drain()),
                Step::Flush => reclaimer.flush(),
                Step::NewCache(cache) => caches[cache] = pool.cache(),
            }
            let outstanding = pool.outstanding(1 + caches.len());
            prop_assert!((out.packets.len()..=buffers).contains(&outstanding), "{outstanding} of {buffers} are out");
        }
        drop((caches, reclaimer));
        prop_assert_eq!(pool.outstanding(1), out.packets.len());
        while out.remove(0).is_some() {}
        prop_assert_eq!(pool.outstanding(1), 0);
        all_are_there(&pool);
    }
}

/// Takes every buffer of a pool that has none out, and checks that their number is the pool's capacity.
fn all_are_there(pool: &Mempool) {
    let mut out = Out::default();
    let mut cache = pool.cache();
    let exhausted = pool.exhausted();
    loop {
        let packets = take(&mut cache, MAGAZINE);
        if packets.is_empty() {
            break;
        }
        packets.into_iter().for_each(|packet| out.add(packet));
    }
    assert_eq!(out.packets.len(), pool.capacity());
    assert!(pool.exhausted() > exhausted);
}

#[test]
fn exhaustion_is_counted_and_passes() {
    let pool = pool(3, 64);
    let mut packets: Vec<Packet> = (0..3).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(pool.exhausted(), 0);
    assert!(pool.alloc().is_none() && pool.alloc().is_none());
    assert_eq!((pool.exhausted(), pool.outstanding(1)), (2, 3));
    packets.pop();
    packets.push(pool.alloc().unwrap());
    assert!(pool.alloc().is_none());
    packets.clear();
    assert_eq!((pool.exhausted(), pool.outstanding(1)), (3, 0));
    all_are_there(&pool);
}

#[test]
fn take_gives_all_that_is_asked_for_while_there_is_as_much() {
    let pool = pool(MAGAZINE, 64);
    let packets = take(&mut pool.cache(), MAGAZINE);
    // Puts them into the depot as four magazines, so that no single exchange returns them all.
    let mut burst = Burst::new(MAGAZINE / 4);
    for packet in packets {
        burst.push(packet);
        if burst.room() == 0 {
            burst.clear();
        }
    }
    assert_eq!(take(&mut pool.cache(), MAGAZINE).len(), MAGAZINE);
    assert_eq!(pool.exhausted(), 0);
}

#[test]
fn a_burst_and_a_reclaimer_sort_by_pool() {
    let pools = [pool(64, 64), pool(64, 128), pool(64, 256)];
    let mut reclaimer = Reclaimer::default();
    let mut burst = Burst::new(96);
    for i in 0..96 {
        burst.push(pools[i % 3].alloc().unwrap());
    }
    reclaim(&mut reclaimer, burst.drain().take(48));
    drop((burst, reclaimer));
    for pool in pools {
        assert_eq!(pool.outstanding(1), 0);
        all_are_there(&pool);
    }
}

#[test]
fn a_reclaimer_outlives_the_pools_that_it_served() {
    let mut reclaimer = Reclaimer::default();
    for round in 0..100 {
        let pool = pool(2, 64);
        let region = std::sync::Arc::downgrade(pool.region());
        let packet = pool.alloc().unwrap();
        drop(pool);
        reclaim(&mut reclaimer, [packet]);
        assert!(region.upgrade().is_some(), "round {round}: freed below its last packet");
        reclaimer.flush();
        assert!(region.upgrade().is_none(), "round {round}: kept by nobody");
    }
}

#[test]
fn a_cache_keeps_its_pool_and_returns_what_it_has() {
    let pool = pool(3 * MAGAZINE, 64);
    let mut cache = pool.cache();
    drop(take(&mut cache, 10));
    assert_eq!(pool.outstanding(2), MAGAZINE - 10, "the rest of a magazine is in the cache");
    let region = std::sync::Arc::downgrade(pool.region());
    drop(pool);
    assert_eq!(take(&mut cache, MAGAZINE).len(), MAGAZINE);
    assert!(region.upgrade().is_some());
    drop(cache);
    assert!(region.upgrade().is_none());
}

#[test]
fn frames_of_neighbours_start_in_different_cache_sets() {
    let pool = pool(64, 2048);
    let mut sets: Vec<u64> = take(&mut pool.cache(), 64).iter().map(|packet| packet.iova() / 64 % 64).collect();
    sets.sort_unstable();
    sets.dedup();
    assert_eq!(sets.len(), 64);
}

#[test]
fn impossible_pools_are_refused() {
    for (buffers, size) in [(0, 2048), (1 << 25, 2048), (usize::MAX, 2048), (16, 63), (16, 60_001), (16, usize::MAX)] {
        let refused = Mempool::new(&MempoolConfig { buffers, size, region: RegionConfig::default() });
        assert!(matches!(refused, Err(Error::Config(_))), "{buffers} buffers of {size} bytes");
    }
}
