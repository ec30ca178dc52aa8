//! Empty packets for a queue that receives.

use ringpass_memory::{Burst, Cache, MAGAZINE, Mempool, Packet};

/// Drops the first `n` packets of a burst.
pub(crate) fn drop_front(burst: &mut Burst, n: usize) {
    if n == burst.len() {
        // All buffers go back together.
        burst.clear();
    } else {
        burst.drain().take(n).for_each(drop);
    }
}

/// Takes packets from the pool before there are frames for them, and keeps those that no frame came for.
pub(crate) struct Buffers {
    cache: Cache,
    spare: Burst,
}

impl Buffers {
    pub(crate) fn new(pool: &Mempool) -> Self {
        Self { cache: pool.cache(), spare: Burst::new(MAGAZINE) }
    }

    /// An empty packet; `None` when the pool has run dry.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Packet> {
        if self.spare.is_empty() {
            self.cache.alloc(&mut self.spare);
        }
        self.spare.pop()
    }

    /// Takes a packet back that was not needed.
    #[inline]
    pub(crate) fn put_back(&mut self, packet: Packet) {
        if self.spare.room() > 0 {
            self.spare.push(packet);
        }
    }
}
