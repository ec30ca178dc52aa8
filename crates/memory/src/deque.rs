//! A burst packet by packet: put in at the end, taken out from either.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

use crate::{Burst, Flags, Packet};

impl Burst {
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

    /// Hands out packets from the front, in order. Those that are left when the iterator is dropped stay, in order.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_> {
        let (start, end) = (self.start, self.end);
        // Should the iterator be forgotten, so are its packets: the burst has none until it comes back.
        self.start = end;
        let burst = NonNull::from(self);
        // SAFETY: a field of the burst, and `start <= end <= MAX_BATCH` in its array.
        let (next, end) = unsafe {
            let packets = (&raw const (*burst.as_ptr()).packets).cast::<Packet>();
            (packets.add(start), packets.add(end))
        };
        Drain { burst, next, end, lent: PhantomData }
    }
}

/// See [`Burst::drain`].
pub struct Drain<'a> {
    /// Lent to this iterator; by pointer, as `next` and `end` point into it.
    burst: NonNull<Burst>,
    /// Those from `next` to `end`, the burst's last, are this iterator's.
    next: *const Packet,
    end: *const Packet,
    lent: PhantomData<&'a mut Burst>,
}

impl Drain<'_> {
    /// The next packet, to look at.
    #[inline]
    fn peek(&self) -> Option<&Packet> {
        // SAFETY: packets from `next` to `end` are initialised.
        (self.next != self.end).then(|| unsafe { &*self.next })
    }

    #[inline]
    fn skip_one(&mut self) {
        // SAFETY: called when there is a packet, so this points to the next one or to the end.
        self.next = unsafe { self.next.add(1) };
    }

    /// The next packet, if it is as wanted; it stays otherwise.
    #[inline]
    pub fn next_if(&mut self, wanted: impl FnOnce(&Packet) -> bool) -> Option<Packet> {
        if wanted(self.peek()?) { self.next() } else { None }
    }

    /// The next packet with `N` bytes of zeros in front of it and without flags, if it has none of those that are named,
    /// no further segments, and such a length. It stays otherwise, or if its headroom is smaller.
    #[inline]
    pub fn next_behind_zeros<const N: usize>(&mut self, unlike: Flags, len: RangeInclusive<usize>) -> Option<Packet> {
        let packet = self.peek()?;
        if packet.flags().any(unlike | Flags::CHAINED)
            || packet.len().wrapping_sub(*len.start()) > len.end() - len.start()
        {
            return None;
        }
        // SAFETY: this one leaves the range with the next line.
        let packet = unsafe { packet.copy_behind_zeros::<N>() }?;
        self.skip_one();
        Some(packet)
    }
}

impl Iterator for Drain<'_> {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        // SAFETY: initialised, and leaves the range with the next line.
        let packet = unsafe { std::ptr::read(self.peek()?) };
        self.skip_one();
        Some(packet)
    }
}

impl Drop for Drain<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: both point into the same array, or behind its end.
        let left = unsafe { self.end.offset_from_unsigned(self.next) };
        // SAFETY: lent to this iterator, whose other pointers are not used again.
        let burst = unsafe { self.burst.as_mut() };
        burst.start = burst.end - left;
        burst.rewind();
    }
}
