//! Buffers that come and go one by one: what virtqueues need, whose devices may give them back in any order.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::atomic::{AtomicU16, AtomicU32};

use crate::{Atomics, Buffer, Cache, Flags, MAGAZINE, Packet, Reclaimer};

// SAFETY: an atomic integer.
unsafe impl Atomics for AtomicU16 {}
// SAFETY: an array of two atomics has no padding.
unsafe impl Atomics for [AtomicU32; 2] {}

impl Cache {
    /// Up to `want` (at most [`MAGAZINE`]) packets of whole buffers, whatever these hold; fewer when the pool has run dry,
    /// which is counted. Those that are not taken from the iterator stay in the cache.
    #[inline]
    pub fn packets(&mut self, want: usize) -> Packets<'_> {
        let want = want.min(MAGAZINE);
        while self.free < want && self.refill() > 0 {}
        let len = self.pool().buffer_size() as u32;
        let left = want.min(self.free);
        // Should the iterator be forgotten, so are its buffers.
        self.free -= left;
        Packets { cache: self, left, len }
    }
}

/// See [`Cache::packets`].
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
        // SAFETY: as many slots from `free` on are this iterator's, outside the depot; this one has just left it.
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

impl Packet {
    /// Of a packet that was whole, a frame from `front` to `end` of its buffer, moved out by copying.
    ///
    /// # Safety
    /// It is as [`Cache::packets`] made it, and is forgotten: neither used nor dropped. `front <= end`, and `end` is at
    /// most the pool's buffer size.
    #[inline]
    pub unsafe fn copy_received(&self, front: usize, end: usize) -> Packet {
        debug_assert!(front <= end && end <= self.len as usize && self.offset == 0 && self.flags == Flags::default());
        // SAFETY: this copy is the only one used, says the caller.
        let buffer = unsafe { std::ptr::read(&self.buffer) };
        Packet { buffer, offset: front as i16, flags: Flags::default(), len: (end - front) as u32 }
    }

    /// The frame with `N` bytes of zeros in front of it, moved out by copying, without flags; `None` if the headroom is
    /// smaller.
    ///
    /// # Safety
    /// If there is one, this packet is forgotten: neither used nor dropped. It has no further segments.
    #[inline]
    pub(crate) unsafe fn copy_behind_zeros<const N: usize>(&self) -> Option<Packet> {
        if self.headroom() < N {
            return None;
        }
        // SAFETY: this copy is the only one used, says the caller.
        let buffer = unsafe { std::ptr::read(&self.buffer) };
        // Inside the headroom, which fits these types.
        let (offset, len) = (self.offset - N as i16, self.len + N as u32);
        // SAFETY: the first bytes of the packet that is made, which lie in its buffer's headroom.
        let front = unsafe { buffer.slot().data.offset(offset as isize) }.cast::<[u8; N]>();
        // Mostly they are zeros since the buffer was last sent. To write them again would take their line from the core that
        // reads them, which costs both more than a look.
        // SAFETY: those bytes, which are this packet's, and initialised as all of a pool's memory is.
        unsafe {
            if front.read() != [0; N] {
                front.write([0; N]);
            }
        }
        Some(Packet { buffer, offset, flags: Flags::default(), len })
    }
}

impl Reclaimer {
    /// Takes the buffers of packets back.
    ///
    /// # Safety
    /// They are initialised, have no further segments, and are not used again.
    #[inline]
    pub unsafe fn add_packets(&mut self, packets: &[MaybeUninit<Packet>]) {
        // SAFETY: initialised, says the caller.
        self.add_all(packets, |packet| unsafe { packet.assume_init_ref() }.buffer.home());
    }

    /// Takes a buffer back.
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
