//! Number and size of the objects in a region of netmap memory.

use serde::{Deserialize, Serialize};

/// Number and size of the objects in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools {
    /// Number of interface descriptors.
    pub interfaces: u32,
    /// Bytes for all rings.
    pub ring_bytes: usize,
    /// Number of buffers, including the two reserved ones.
    pub buffers: u32,
    /// Bytes of a buffer: 64 to 65,536, a multiple of the cache line.
    pub buffer_size: u32,
}

impl Default for Pools {
    /// Pools for one port with a pair of rings of 1024 slots, with twice as many buffers as those have.
    fn default() -> Self {
        Self { interfaces: 2, ring_bytes: 4 * (20 << 10), buffers: 4098, buffer_size: 2048 }
    }
}
