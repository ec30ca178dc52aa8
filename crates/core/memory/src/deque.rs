//! Access to single packets of a burst: pushing at the end, taking from either end.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

use crate::{Burst, Flags, MAX_BATCH, Packet};

impl Burst {
    /// Appends a packet.
    ///
    /// # Panics
    /// If there is no [`room`](Self::room).
    #[inline]
    pub fn push(&mut self, packet: Packet) {
        assert!(self.end < self.limit, "a full burst");
        self.packets[self.end].write(packet);
        self.end += 1;
    }

    /// Removes and returns the last packet.
    pub fn pop(&mut self) -> Option<Packet> {
        if self.is_empty() {
            return None;
        }
        self.end -= 1;
        // SAFETY: packets in `start..end` are initialised. This one was the last of them and has just left that
        // range, so nobody uses it again.
        let packet = unsafe { self.packets[self.end].assume_init_read() };
        self.rewind();
        Some(packet)
    }

    /// Moves packets from the front of another burst to the end of this one, as many as there is [`room`](Self::room) for, and
    /// returns their number.
    ///
    /// ```
    /// use ringpass_memory::{Burst, Mempool, MempoolConfig, Packet};
    ///
    /// let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() })?;
    /// let (mut all, mut long, mut some) = (Burst::new(32), Burst::new(32), Burst::new(20));
    /// pool.cache().alloc(&mut all);
    /// all.iter_mut().zip(60..).for_each(|(packet, len)| packet.set_len(len));
    /// all.split(&mut long, |packet| packet.len() >= 70);
    /// assert_eq!((all.len(), long.len(), long[0].len()), (10, 22, 70));
    /// some.append(&mut all);
    /// assert_eq!((some.append(&mut long), some.len(), long.len()), (10, 20, 12));
    /// # Ok::<(), ringpass_memory::Error>(())
    /// ```
    pub fn append(&mut self, from: &mut Burst) -> usize {
        let moved = self.room().min(from.len());
        from.drain().take(moved).for_each(|packet| self.push(packet));
        moved
    }

    /// Moves the packets for which `wanted` returns `true` to the end of another burst, as long as that has
    /// [`room`](Self::room). The others stay, all in their order.
    pub fn split(&mut self, to: &mut Burst, mut wanted: impl FnMut(&mut Packet) -> bool) {
        let mut rest = Burst::new(MAX_BATCH);
        for mut packet in self.drain() {
            let burst = if to.room() > 0 && wanted(&mut packet) { &mut *to } else { &mut rest };
            burst.push(packet);
        }
        self.append(&mut rest);
    }

    /// Removes packets from the front, in order. Packets not taken when the iterator is dropped stay in the
    /// burst, in order.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_> {
        let (start, end) = (self.start, self.end);
        // If the iterator is leaked, so are its packets: the burst holds none until the iterator is dropped.
        self.start = end;
        let burst = NonNull::from(self);
        // SAFETY: `burst` points to the burst borrowed here, and `start <= end <= MAX_BATCH`, the length of
        // `packets`.
        let (next, end) = unsafe {
            let packets = (&raw const (*burst.as_ptr()).packets).cast::<Packet>();
            (packets.add(start), packets.add(end))
        };
        Drain { burst, next, end, lent: PhantomData }
    }
}

/// Iterator over packets removed from the front of a burst; see [`Burst::drain`].
pub struct Drain<'a> {
    /// Borrowed by this iterator. A pointer, because `next` and `end` point into it.
    burst: NonNull<Burst>,
    /// The packets from `next` to `end`, the burst's last, belong to this iterator.
    next: *const Packet,
    end: *const Packet,
    lent: PhantomData<&'a mut Burst>,
}

impl Drain<'_> {
    /// Returns the next packet without removing it.
    #[inline]
    fn peek(&self) -> Option<&Packet> {
        // SAFETY: packets from `next` to `end` are initialised (`Burst::start..end` in `drain`), and `next` is
        // not `end`.
        (self.next != self.end).then(|| unsafe { &*self.next })
    }

    #[inline]
    fn skip_one(&mut self) {
        // SAFETY: called only after `peek` found a packet, so `next` is before `end` and stays within the array
        // or one past it.
        self.next = unsafe { self.next.add(1) };
    }

    /// Moves the next packet to the end of a burst. Returns `false`, with nothing changed, if there is none, or no [`room`](Burst::room).
    #[inline]
    pub fn move_to(&mut self, burst: &mut Burst) -> bool {
        if self.next == self.end || burst.end >= burst.limit {
            return false;
        }
        // SAFETY: `next` points to a packet that belongs to this iterator, and to no burst until that is dropped. `end` is below `limit`, at most the
        // length of `packets`, so there is a place; a burst's places from `end` on hold no packets. From here on the packet is `burst`'s.
        unsafe {
            let to = burst.packets.as_mut_ptr().add(burst.end);
            to.cast::<Packet>().copy_from_nonoverlapping(self.next, 1);
        }
        burst.end += 1;
        self.skip_one();
        true
    }

    /// Removes and returns the next packet if `wanted` returns `true` for it; otherwise it stays.
    #[inline]
    pub fn next_if(&mut self, wanted: impl FnOnce(&Packet) -> bool) -> Option<Packet> {
        if wanted(self.peek()?) { self.next() } else { None }
    }

    /// Removes the next packet and returns it with `N` bytes of zeros in front of it and without flags. This is
    /// done only for a packet without any of the flags `unlike`, without further segments, with a length in
    /// `len` and with `N` bytes of headroom; any other stays.
    #[inline]
    pub fn next_with_zeroed_header<const N: usize>(
        &mut self,
        unlike: Flags,
        len: RangeInclusive<usize>,
    ) -> Option<Packet> {
        let packet = self.peek()?;
        if packet.flags().any(unlike | Flags::CHAINED)
            || packet.len().wrapping_sub(*len.start()) > len.end() - len.start()
        {
            return None;
        }
        // SAFETY: if a copy is returned, `skip_one` takes the packet out of `next..end`, so only the copy is
        // used. It has no further segments, as `CHAINED` was checked.
        let packet = unsafe { copy_with_zeroed_header::<N>(packet) }?;
        self.skip_one();
        Some(packet)
    }
}

impl Iterator for Drain<'_> {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        // SAFETY: `peek` returns initialised packets only, and `skip_one` takes this one out of `next..end`, so
        // only the copy is used.
        let packet = unsafe { std::ptr::read(self.peek()?) };
        self.skip_one();
        Some(packet)
    }
}

impl Drop for Drain<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: both point into `packets` of the same burst, or one past its end, and `next <= end`.
        let left = unsafe { self.end.offset_from_unsigned(self.next) };
        // SAFETY: the iterator borrows the burst mutably for `'a`, and its other pointers into it are not used
        // again.
        let burst = unsafe { self.burst.as_mut() };
        burst.start = burst.end - left;
        burst.rewind();
    }
}

/// Returns the packet's frame with `N` bytes of zeros in front of it and without flags, as a copy of the handle, or
/// `None` if the headroom is smaller.
///
/// # Safety
/// The packet has no further segments. If a copy is returned, the packet is forgotten: neither used nor
/// dropped.
#[inline]
unsafe fn copy_with_zeroed_header<const N: usize>(packet: &Packet) -> Option<Packet> {
    if packet.headroom() < N {
        return None;
    }
    // SAFETY: the packet is neither used nor dropped afterwards, by this function's contract, so only the
    // copy owns the buffer.
    let buffer = unsafe { std::ptr::read(&packet.buffer) };
    // `N` is at most the headroom, so the results fit these types.
    let (offset, len) = (packet.offset - N as i16, packet.len + N as u32);
    // SAFETY: the `N` bytes in front of the frame lie in the buffer's headroom, as `headroom() >= N` was
    // checked.
    let front = unsafe { buffer.slot().data.offset(offset as isize) }.cast::<[u8; N]>();
    // The bytes are mostly zero already, since the buffer was last sent. Writing them again would take the
    // cache line from the core that reads them, which costs both cores more than this comparison.
    // SAFETY: `front` points to `N` bytes inside the headroom of the buffer that this packet owns. They
    // are initialised, as all memory of a pool is, and an array of bytes needs no alignment.
    unsafe {
        if front.read() != [0; N] {
            front.write([0; N]);
        }
    }
    Some(Packet { buffer, offset, flags: Flags::default(), len })
}
