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

    /// Takes the first `n` packets (all, if there are fewer), in order; the rest stays, in order. Packets that the
    /// iterator has not handed out when it is dropped are dropped too.
    #[inline]
    pub fn take(&mut self, n: usize) -> Take<'_> {
        let end = self.start + n.min(self.len());
        Take { burst: self, end }
    }

    /// Drops the packets and returns their buffers together.
    pub fn clear(&mut self) {
        if !self.is_empty() {
            let mut reclaimer = Reclaimer::default();
            self.take(MAX_BATCH).for_each(|packet| reclaimer.add(packet.into_owed()));
        }
    }

    #[inline]
    fn rewind(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }
}

/// See [`Burst::take`].
pub struct Take<'a> {
    burst: &'a mut Burst,
    end: usize,
}

impl Iterator for Take<'_> {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        if self.burst.start == self.end {
            return None;
        }
        // SAFETY: packets in `start..end` are initialised, and this one leaves that range with the next line.
        let packet = unsafe { self.burst.packets.get_unchecked(self.burst.start).assume_init_read() };
        self.burst.start += 1;
        Some(packet)
    }
}

impl Drop for Take<'_> {
    #[inline]
    fn drop(&mut self) {
        self.for_each(drop);
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
