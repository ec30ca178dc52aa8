//! Allocation of empty packets, for code that generates frames instead of receiving them.

use crate::{Burst, Cache, MAGAZINE, Mempool, Packet};

impl Cache {
    /// Takes up to `want` empty packets; otherwise like [`buffers`](Self::buffers).
    #[inline]
    pub fn take(&mut self, want: usize) -> impl ExactSizeIterator<Item = Packet> {
        // SAFETY: a length of 0 is at most any buffer size.
        self.buffers(want).map(|buffer| unsafe { buffer.into_packet(0) })
    }

    /// Fills the burst up to its limit with empty packets; with fewer if the pool runs dry.
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
    /// Takes one empty packet. Returns `None`, and counts it, if no buffer is left. Queues use a [`Cache`],
    /// which is faster.
    pub fn alloc(&self) -> Option<Packet> {
        let mut burst = Burst::new(1);
        self.cache().alloc(&mut burst);
        burst.pop()
    }
}
