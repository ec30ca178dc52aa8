//! Taking and returning buffers one by one, for queues whose devices may return them in any order.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::atomic::AtomicU32;

use crate::{Atomics, Buffer, Cache, Flags, MAGAZINE, Packet, Reclaimer};

// SAFETY: an array of two atomic integers of the same size has no padding.
unsafe impl Atomics for [AtomicU32; 2] {}

impl Cache {
    /// Takes up to `want` packets, at most [`MAGAZINE`], each the size of its buffer, whatever the buffers
    /// hold. Yields fewer if the pool runs dry, which is counted. Packets that are not taken from the iterator
    /// stay in the cache.
    #[inline]
    pub fn packets(&mut self, want: usize) -> Packets<'_> {
        let want = want.min(MAGAZINE);
        while self.free < want && self.refill() > 0 {}
        let len = self.pool().buffer_size() as u32;
        let left = want.min(self.free);
        // If the iterator is leaked, so are its buffers.
        self.free -= left;
        Packets { cache: self, left, len }
    }
}

/// Iterator over packets taken from a cache; see [`Cache::packets`].
pub struct Packets<'a> {
    cache: &'a mut Cache,
    left: usize,
    len: u32,
}

impl Iterator for Packets<'_> {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: `slots[free..free + left]` were taken out of the cache by `packets`, are outside the depot
        // and belong to this iterator. This slot has just left that range, so the new handle alone owns it.
        let buffer = unsafe { Buffer::new(*self.cache.slots.get_unchecked(self.cache.free + self.left)) };
        Some(Packet { buffer, offset: 0, flags: Flags::default(), len: self.len })
    }
}

impl Drop for Packets<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cache.free += self.left;
    }
}

impl Reclaimer {
    /// Takes the buffers of packets back.
    ///
    /// # Safety
    /// The packets are initialised, have no further segments, and are not used again.
    #[inline]
    pub unsafe fn add_packets(&mut self, packets: &[MaybeUninit<Packet>]) {
        // SAFETY: all of `packets` are initialised, by this function's contract.
        self.add_all(packets, |packet| unsafe { packet.assume_init_ref() }.buffer.home());
    }

    /// Takes one buffer back.
    #[inline]
    pub fn add_one(&mut self, buffer: Buffer) {
        let (pool, slot) = ManuallyDrop::new(buffer).home();
        match self.slots.get_mut(self.len).filter(|_| pool == self.pool) {
            Some(place) => *place = slot,
            None => {
                self.flush();
                (self.pool, self.slots[0]) = (pool, slot);
            }
        }
        self.len += 1;
    }
}
