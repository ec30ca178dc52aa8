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
    start: usize,
    end: usize,
    limit: usize,
    packets: [MaybeUninit<Packet>; MAX_BATCH],
}

impl Burst {
    /// An empty burst that takes up to `limit` packets (1 to [`MAX_BATCH`]; other values are brought into that range).
    pub fn new(limit: usize) -> Self {
        Self {
            start: 0,
            end: 0,
            limit: limit.clamp(1, MAX_BATCH),
            packets: [const { MaybeUninit::uninit() }; MAX_BATCH],
        }
    }

    /// How many more packets fit. Only an empty burst has room again after packets were taken from its front.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit - self.end
    }

    /// Adds a packet behind the others.
    ///
    /// # Panics
    /// If there is no [`room`](Self::room).
    #[inline]
    pub fn push(&mut self, packet: Packet) {
        assert!(self.end < self.limit, "a full burst");
        self.packets[self.end].write(packet);
        self.end += 1;
    }

    /// Takes the last packet.
    pub fn pop(&mut self) -> Option<Packet> {
        if self.is_empty() {
            return None;
        }
        self.end -= 1;
        // SAFETY: packets in `start..end` are initialised, and this one has just left that range.
        let packet = unsafe { self.packets[self.end].assume_init_read() };
        self.rewind();
        Some(packet)
    }

    /// The places that are free, for a queue to write packets to; see [`commit`](Self::commit).
    #[inline]
    pub fn spare(&mut self) -> &mut [MaybeUninit<Packet>] {
        &mut self.packets[self.end..self.limit]
    }

    /// Adds the packets in the first `n` places of [`spare`](Self::spare).
    ///
    /// # Safety
    /// Those places exist and hold packets.
    #[inline]
    pub unsafe fn commit(&mut self, n: usize) {
        self.end += n;
    }

    /// Forgets the first `n` packets, which were moved out by copying them.
    ///
    /// # Safety
    /// There are as many, and the copies are the only ones used from here on.
    #[inline]
    pub unsafe fn forget(&mut self, n: usize) {
        self.start += n;
        self.rewind();
    }

    /// Hands out packets from the front, in order. Those that are left when the iterator is dropped stay, in order.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_> {
        // Should the iterator be forgotten, so are its packets: the burst has none until it comes back.
        let start = std::mem::replace(&mut self.start, self.end);
        Drain { burst: self, start }
    }

    /// Drops the packets and returns their buffers together.
    #[inline]
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.reclaim();
        }
    }

    #[cold]
    fn reclaim(&mut self) {
        let packets = &self.packets[self.start..self.end];
        (self.start, self.end) = (0, 0);
        // SAFETY: packets in `start..end` were initialised, and that range is empty now.
        Reclaimer::default().add_all(packets, |packet| unsafe { packet.assume_init_ref() }.home());
    }

    /// An empty burst has all of its room.
    #[inline]
    fn rewind(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }
}

/// See [`Burst::drain`].
pub struct Drain<'a> {
    burst: &'a mut Burst,
    start: usize,
}

impl Iterator for Drain<'_> {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        if self.start == self.burst.end {
            return None;
        }
        // SAFETY: packets in `start..end` are initialised, and this one leaves that range with the next line.
        let packet = unsafe { self.burst.packets.get_unchecked(self.start).assume_init_read() };
        self.start += 1;
        Some(packet)
    }
}

impl Drop for Drain<'_> {
    #[inline]
    fn drop(&mut self) {
        self.burst.start = self.start;
        self.burst.rewind();
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

    #[inline]
    fn deref(&self) -> &[Packet] {
        // SAFETY: `start..end` is within the array and initialised; `MaybeUninit<Packet>` is laid out as `Packet`.
        unsafe { std::slice::from_raw_parts(self.packets.as_ptr().add(self.start).cast(), self.end - self.start) }
    }
}

impl DerefMut for Burst {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Packet] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.packets.as_mut_ptr().add(self.start).cast(), self.end - self.start)
        }
    }
}
