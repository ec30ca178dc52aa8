//! Bursts: packets that are received, processed and sent together.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use crate::{Packet, Reclaimer};

/// Largest number of packets in a burst.
pub const MAX_BATCH: usize = 256;

/// Up to [`MAX_BATCH`] packets in a fixed array, without allocation. Dereferences to a slice of them.
///
/// ```
/// use ringpass_memory::{Burst, Mempool, MempoolConfig};
///
/// let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() })?;
/// let mut burst = Burst::new(32);
/// pool.cache().alloc(&mut burst);
/// for packet in burst.iter_mut() {
///     packet.set_len(60);
/// }
/// assert_eq!((burst.len(), burst.room()), (32, 0));
/// burst.clear();
/// assert_eq!((burst.len(), pool.outstanding(1)), (0, 0));
/// # Ok::<(), ringpass_memory::Error>(())
/// ```
///
/// When it is dropped or cleared, the buffers of its packets are returned together, by pool.
pub struct Burst {
    /// Packets in `start..end` are initialised.
    /// At most `limit`.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Largest number of packets; at most [`MAX_BATCH`].
    pub(crate) limit: usize,
    pub(crate) packets: [MaybeUninit<Packet>; MAX_BATCH],
}

impl Burst {
    /// Creates an empty burst for up to `limit` packets, which is clamped to 1 to [`MAX_BATCH`].
    pub fn new(limit: usize) -> Self {
        let packets = [const { MaybeUninit::uninit() }; MAX_BATCH];
        Self { start: 0, end: 0, limit: limit.clamp(1, MAX_BATCH), packets }
    }

    /// Returns how many more packets fit. After packets were taken from the front, there is more room only once
    /// the burst is empty.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit - self.end
    }

    /// Returns the free places, for a queue to write packets to; see [`commit`](Self::commit).
    #[inline]
    pub fn spare(&mut self) -> &mut [MaybeUninit<Packet>] {
        &mut self.packets[self.end..self.limit]
    }

    /// Adds the packets in the first `n` places of [`spare`](Self::spare).
    ///
    /// # Safety
    /// `spare` has at least `n` places, and the first `n` hold packets.
    #[inline]
    pub unsafe fn commit(&mut self, n: usize) {
        self.end += n;
    }

    /// Removes the first `n` packets without dropping them; the caller has moved them out by copying.
    ///
    /// # Safety
    /// The burst has at least `n` packets, and only the copies are used from here on.
    #[inline]
    pub unsafe fn forget(&mut self, n: usize) {
        self.start += n;
        self.rewind();
    }

    /// Drops all packets and returns their buffers together.
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
        // SAFETY: packets in `start..end` are initialised. These have just left that range, so their buffers
        // are returned only here.
        Reclaimer::default().add_all(packets, |packet| unsafe { packet.assume_init_ref() }.buffer.home());
        self.rewind();
    }

    /// Keeps the packets for which `keep` returns `true`, in their order, and drops the others.
    ///
    /// ```
    /// use ringpass_memory::{Burst, Mempool, MempoolConfig, Packet};
    ///
    /// let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() })?;
    /// let mut burst = Burst::new(32);
    /// pool.cache().alloc(&mut burst);
    /// burst.iter_mut().zip(60..).for_each(|(packet, len)| packet.set_len(len));
    /// burst.retain(|packet| packet.len() % 10 == 0);
    /// assert_eq!(burst.iter().map(Packet::len).collect::<Vec<_>>(), [60, 70, 80, 90]);
    /// # Ok::<(), ringpass_memory::Error>(())
    /// ```
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Packet) -> bool) {
        let mut kept = [false; MAX_BATCH];
        let mut all = true;
        for (packet, kept) in self.iter_mut().zip(&mut kept) {
            *kept = keep(packet);
            all &= *kept;
        }
        if all {
            return;
        }
        // The kept packets move to the end, the last one first, so that those before them are dropped together.
        let mut first = self.len();
        for at in (0..self.len()).rev().filter(|&at| kept[at]) {
            first -= 1;
            self.swap(at, first);
        }
        if first > 0 {
            self.discard(first);
        }
    }

    /// Moves an empty burst back to the front of its array, so that it has all of its room.
    #[inline]
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
        // SAFETY: `start..end` is within the array and initialised; `MaybeUninit<Packet>` has the layout of `Packet`.
        unsafe { std::slice::from_raw_parts(self.packets.as_ptr().add(self.start).cast(), self.end - self.start) }
    }
}

impl DerefMut for Burst {
    fn deref_mut(&mut self) -> &mut [Packet] {
        // SAFETY: `start..end` is within the array and initialised; `MaybeUninit<Packet>` has the layout of
        // `Packet`; `self` is borrowed mutably, so this is the only reference.
        unsafe {
            std::slice::from_raw_parts_mut(self.packets.as_mut_ptr().add(self.start).cast(), self.end - self.start)
        }
    }
}
