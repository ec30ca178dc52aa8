//! A burst packet by packet: put in at the end, taken out from either.

use crate::{Burst, Packet};

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
        // Should the iterator be forgotten, so are its packets: the burst has none until it comes back.
        let start = std::mem::replace(&mut self.start, self.end);
        Drain { burst: self, start }
    }
}

/// See [`Burst::drain`].
pub struct Drain<'a> {
    burst: &'a mut Burst,
    start: usize,
}

impl Drain<'_> {
    /// The next packet, if it is as wanted; it stays otherwise.
    #[inline]
    pub fn next_if(&mut self, wanted: impl FnOnce(&Packet) -> bool) -> Option<Packet> {
        if self.start == self.burst.end {
            return None;
        }
        // SAFETY: packets in `start..end` are initialised.
        let packet = unsafe { self.burst.packets.get_unchecked(self.start).assume_init_ref() };
        if wanted(packet) { self.next() } else { None }
    }
}

impl Drain<'_> {
    /// The next packet, if it is as wanted, with `N` bytes of zeros in front of it; it stays otherwise, or if its
    /// headroom is smaller.
    #[inline]
    pub fn next_behind_zeros<const N: usize>(&mut self, wanted: impl FnOnce(&Packet) -> bool) -> Option<Packet> {
        if self.start == self.burst.end {
            return None;
        }
        // SAFETY: packets in `start..end` are initialised.
        let packet = unsafe { self.burst.packets.get_unchecked(self.start).assume_init_ref() };
        if !wanted(packet) {
            return None;
        }
        // SAFETY: this one leaves that range with the next line.
        let packet = unsafe { packet.copy_behind_zeros::<N>() }?;
        self.start += 1;
        Some(packet)
    }
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
