//! Empty packets from a pool, for those who make frames rather than receive them.

use crate::{Burst, Cache, MAGAZINE, Mempool, Packet};

impl Cache {
    /// As [`buffers`](Self::buffers), as empty packets.
    #[inline]
    pub fn take(&mut self, want: usize) -> impl ExactSizeIterator<Item = Packet> {
        // SAFETY: nothing fits into every buffer.
        self.buffers(want).map(|buffer| unsafe { buffer.into_packet(0) })
    }

    /// Fills the burst up to its limit with empty packets; fewer when the pool has run dry.
    pub fn alloc(&mut self, burst: &mut Burst) {
        loop {
            let packets = self.take(burst.room());
            let more = packets.len() == MAGAZINE;
            packets.for_each(|packet| burst.push(packet));
            if !more {
                break;
            }
        }
    }
}

impl Mempool {
    /// One empty packet; `None`, counted, when no buffer is left. Queues use a [`Cache`], which is faster.
    pub fn alloc(&self) -> Option<Packet> {
        let mut burst = Burst::new(1);
        self.cache().alloc(&mut burst);
        burst.pop()
    }
}
