//! Copies of packets in buffers of their own, for a monitor whose rings exchange buffers.

use ringpass_memory::{Burst, MAX_BATCH, Mempool, Packet};

use crate::copies::copy;

/// Makes copies of packets. Between two calls it keeps no buffers, so that idle monitors leave them to others.
pub(super) struct Copier {
    pool: Mempool,
    copies: Box<Burst>,
}

impl Copier {
    /// Creates it; the copies are packets of `pool`.
    pub(super) fn new(pool: &Mempool) -> Self {
        Self { pool: pool.clone(), copies: Box::new(Burst::new(MAX_BATCH)) }
    }

    /// Copies packets, each into one buffer, and passes them to `send`. Packets that are longer than a buffer are left out, as are
    /// the last if the pool is empty. Returns what `send` does.
    pub(super) fn send(&mut self, packets: &[Packet], send: impl FnOnce(&mut [Packet]) -> usize) -> usize {
        let Self { pool, copies } = self;
        let (mut cache, longest) = (pool.cache(), pool.buffer_size());
        copy(packets.iter().filter(|packet| packet.total_len() <= longest), &mut cache, copies);
        let done = send(copies);
        copies.clear();
        done
    }
}
