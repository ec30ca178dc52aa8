//! A burst: packets that are received, handled and sent together.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use crate::{Packet, Reclaimer};

/// The largest batch, in packets.
pub const MAX_BATCH: usize = 256;

/// Up to [`MAX_BATCH`] packets in a fixed array, without allocation. Derefs to a slice of them.
///
/// Dropped or cleared, it returns the buffers of its packets together, by pool.
pub struct Burst {
    /// Packets in `start..end` are initialised; `end` is at most `limit`.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) limit: usize,
    pub(crate) packets: [MaybeUninit<Packet>; MAX_BATCH],
}

impl Burst {
    /// An empty burst that takes up to `limit` packets (1 to [`MAX_BATCH`]; other values are brought into that range).
    pub fn new(limit: usize) -> Self {
        let packets = [const { MaybeUninit::uninit() }; MAX_BATCH];
        Self { start: 0, end: 0, limit: limit.clamp(1, MAX_BATCH), packets }
    }

    /// How many more packets fit. Only an empty burst has room again after packets were taken from its front.
    pub fn room(&self) -> usize {
        self.limit - self.end
    }

    /// The places that are free, for a queue to write packets to; see [`commit`](Self::commit).
    pub fn spare(&mut self) -> &mut [MaybeUninit<Packet>] {
        &mut self.packets[self.end..self.limit]
    }

    /// Adds the packets in the first `n` places of [`spare`](Self::spare).
    ///
    /// # Safety
    /// Those places exist and hold packets.
    pub unsafe fn commit(&mut self, n: usize) {
        self.end += n;
    }

    /// Forgets the first `n` packets, which were moved out by copying them.
    ///
    /// # Safety
    /// There are as many, and the copies are the only ones used from here on.
    pub unsafe fn forget(&mut self, n: usize) {
        self.start += n;
        self.rewind();
    }

    /// Drops the packets and returns their buffers together.
    #[inline]
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.discard(self.len());
        }
    }

    /// Drops the first `n` packets and returns their buffers together.
    ///
    /// # Panics
    /// If there are fewer.
    #[cold]
    pub fn discard(&mut self, n: usize) {
        self[..n].iter_mut().filter(|packet| packet.is_chained()).for_each(Packet::drop_rest);
        let packets = &self.packets[self.start..self.end][..n];
        self.start += n;
        // SAFETY: packets in `start..end` were initialised, and these have left that range.
        Reclaimer::default().add_all(packets, |packet| unsafe { packet.assume_init_ref() }.buffer.home());
        self.rewind();
    }

    /// An empty burst has all of its room.
    pub(crate) fn rewind(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }
}

impl Drop for Burst {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

impl Deref for Burst {
    type Target = [Packet];

    fn deref(&self) -> &[Packet] {
        // SAFETY: `start..end` is within the array and initialised; `MaybeUninit<Packet>` is laid out as `Packet`.
        unsafe { std::slice::from_raw_parts(self.packets.as_ptr().add(self.start).cast(), self.end - self.start) }
    }
}

impl DerefMut for Burst {
    fn deref_mut(&mut self) -> &mut [Packet] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.packets.as_mut_ptr().add(self.start).cast(), self.end - self.start)
        }
    }
}
