//! Helpers shared by the tests of this crate.
#![allow(dead_code)] // Each test file uses only some of them.

use std::mem::MaybeUninit;

use proptest::prelude::ProptestConfig;
use ringpass_memory::{Cache, Mempool, MempoolConfig, Packet, Reclaimer, RegionConfig};

/// Creates a pool on ordinary pages.
pub fn pool(buffers: usize, size: usize) -> Mempool {
    Mempool::new(&MempoolConfig { buffers, size, region: RegionConfig::default() }).unwrap()
}

/// Returns `normal`, or `miri` under miri, which is some hundred times slower.
pub fn count(normal: usize, miri: usize) -> usize {
    if cfg!(miri) { miri } else { normal }
}

/// Configures a property test with this number of cases, fewer under miri.
pub fn cases(normal: usize) -> ProptestConfig {
    ProptestConfig { cases: count(normal, 1) as u32, failure_persistence: None, ..ProptestConfig::default() }
}

/// Makes a number the packet's frame.
pub fn mark(packet: &mut Packet, number: u64) {
    assert!(packet.copy_from(&number.to_le_bytes()));
}

/// Reads the number that [`mark`] wrote.
pub fn number(packet: &Packet) -> u64 {
    u64::from_le_bytes(packet.array(0).filter(|_| packet.len() == 8).expect("a marked packet has 8 bytes"))
}

/// Takes up to `n` packets from a cache.
pub fn take(cache: &mut Cache, n: usize) -> Vec<Packet> {
    cache.take(n).collect()
}

/// Gives packets to a reclaimer.
pub fn reclaim(reclaimer: &mut Reclaimer, packets: impl IntoIterator<Item = Packet>) {
    let packets: Vec<_> = packets.into_iter().map(|packet| MaybeUninit::new(packet.into_buffer())).collect();
    // SAFETY: they are initialised buffers that this function owns, and they are not used again.
    unsafe { reclaimer.add(&packets) };
}
