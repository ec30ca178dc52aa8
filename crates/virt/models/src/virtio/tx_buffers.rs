//! The device's own buffers.

use ringpass_memory::{Cache, Mempool, MempoolConfig, Packet};
use ringpass_port::chain;

/// The device's own buffers for frames on their way to the wire.
pub(super) struct Buffers {
    cache: Cache,
    jumbo: Mempool,
}

impl Buffers {
    pub(super) const JUMBO: usize = 9728;

    pub(super) fn new(pool: &Mempool) -> Self {
        let jumbo = MempoolConfig { buffers: 64, size: Self::JUMBO, ..Default::default() };
        Self {
            cache: pool.cache(),
            jumbo: Mempool::new(&jumbo).expect("a MiB of ordinary pages for the model's frames"),
        }
    }

    /// Copies a frame into a packet, in one buffer unless the frame is longer than any buffer.
    pub(super) fn copy(&mut self, frame: &[u8]) -> Option<Packet> {
        if (self.cache.pool().buffer_size() + 1..=Self::JUMBO).contains(&frame.len()) {
            return chain([frame], || self.jumbo.alloc());
        }
        chain([frame], || self.cache.take(1).next())
    }
}
