//! What the tests of this crate share.
#![allow(dead_code)] // Each test file uses its part.

use std::mem::MaybeUninit;

use proptest::prelude::ProptestConfig;
use ringpass_memory::{Cache, Mempool, MempoolConfig, Packet, Reclaimer, RegionConfig};

/// A pool on ordinary pages.
pub fn pool(buffers: usize, size: usize) -> Mempool {
    Mempool::new(&MempoolConfig { buffers, size, region: RegionConfig::default() }).unwrap()
}

/// Fewer where miri, which is some hundred times slower, runs the tests.
pub fn count(normal: usize, miri: usize) -> usize {
    if cfg!(miri) { miri } else { normal }
}

/// Cases of a property test.
pub fn cases(normal: usize) -> ProptestConfig {
    ProptestConfig { cases: count(normal, 1) as u32, failure_persistence: None, ..ProptestConfig::default() }
}

/// Writes a number into a packet as its frame.
pub fn mark(packet: &mut Packet, number: u64) {
    assert!(packet.copy_from(&number.to_le_bytes()));
}

/// The number that [`mark`] wrote.
pub fn number(packet: &Packet) -> u64 {
    u64::from_le_bytes(packet.array(0).filter(|_| packet.len() == 8).expect("a marked packet has 8 bytes"))
}

/// Up to `n` packets from a cache.
pub fn take(cache: &mut Cache, n: usize) -> Vec<Packet> {
    cache.take(n).collect()
}

/// Gives packets to a reclaimer.
pub fn reclaim(reclaimer: &mut Reclaimer, packets: impl IntoIterator<Item = Packet>) {
    let packets: Vec<_> = packets.into_iter().map(|packet| MaybeUninit::new(packet.into_buffer())).collect();
    // SAFETY: they are buffers, and given up here.
    unsafe { reclaimer.add(&packets) };
}
