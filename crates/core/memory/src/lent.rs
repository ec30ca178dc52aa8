//! Pools of lent buffers: the buffers belong to somebody else, who lends them by number, each with its own address and
//! size.
//!
//! A queue takes lent buffers through a [`LentCache`]. A packet in one has the flag
//! [`Flags::LENT`](crate::Flags::LENT). It ends in one of two ways: the lender [completes](LentPoolId::complete) it,
//! which hands the buffer with the frame to its owner; or it is dropped, and its buffer is the next to be taken.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::depot::MAGAZINE;
use crate::packet::{Shared, Slot, SlotRef};
use crate::shared::{Memory, put, release};
use crate::{Buffer, Burst, Flags, Mempool, Packet};

/// A handle to a pool of lent buffers. Clones refer to the same pool.
#[derive(Clone, Debug)]
pub struct LentPool(Mempool);

impl LentPool {
    /// Largest number of buffers that are lent at a time.
    pub const MAX_BUFFERS: usize = 1 << 15;

    /// Creates a pool for up to `buffers` buffers at a time, of which none is lent yet. `memory` keeps what they will
    /// lie in mapped; it is dropped when every handle has been dropped and every buffer has come back.
    ///
    /// # Panics
    /// If `buffers` exceeds [`MAX_BUFFERS`](Self::MAX_BUFFERS).
    pub fn new(buffers: usize, memory: impl Send + Sync + 'static) -> Self {
        assert!(buffers <= Self::MAX_BUFFERS, "a pool of lent buffers is of bounded size");
        let none =
            |index, pool| Slot { data: std::ptr::null_mut(), iova: 0, pool, index: index as u32, size: 0, headroom: 0 };
        Self(Mempool::of(Memory::Lent(Box::new(memory)), buffers, none))
    }

    /// Returns the pool's identity, for the lender.
    pub fn id(&self) -> LentPoolId {
        LentPoolId(self.0.0)
    }

    /// Like [`Mempool::outstanding`]: returns the number of buffers in packets, rings and caches.
    pub fn outstanding(&self, handles: usize) -> usize {
        self.0.outstanding(handles)
    }
}

/// Identity of a pool of lent buffers. It does not keep the pool alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentPoolId(NonNull<Shared>);

// SAFETY: the pointer is compared with the pools of packets. It is dereferenced only after a packet of the same
// pool was found, which keeps that pool alive, and `Shared` may be used by any thread.
unsafe impl Send for LentPoolId {}
// SAFETY: `LentPoolId` is `Copy` and never modified. Its pointer is dereferenced only after a packet of the same
// pool was found, which keeps that pool alive, and `Shared` may be used by any thread.
unsafe impl Sync for LentPoolId {}

impl LentPoolId {
    /// Returns the number under which the packet's buffer was lent, if it is of this pool.
    #[inline]
    pub fn number(&self, packet: &Packet) -> Option<u32> {
        let slot = packet.buffer.slot();
        (slot.pool == self.0).then_some(slot.index)
    }

    /// Returns whether [`complete`](Self::complete) can take the packet: its buffer is of this pool, the frame lies
    /// in it alone and is no longer than what was lent. A frame that grew into the headroom may be longer, and
    /// would not fit behind a header.
    #[inline]
    pub fn can_complete(&self, packet: &Packet) -> bool {
        let slot = packet.buffer.slot();
        slot.pool == self.0 && packet.len() <= slot.size as usize && !packet.is_chained()
    }

    /// Completes packets at the front of a burst: they leave the burst, and their buffers go to their owner.
    /// Stops at the first packet that it [cannot take](Self::can_complete) or that is not `wanted`.
    #[inline(always)]
    pub fn complete(self, burst: &mut Burst, wanted: impl Fn(&Packet) -> bool) -> Completions<'_> {
        let own = |packet: &&Packet| self.can_complete(packet) && wanted(packet);
        let (start, count) = (burst.start, burst.iter().take_while(own).count());
        // SAFETY: the burst has at least `count` packets. `Completions` only reads the forgotten ones and gives
        // up their references, so nobody owns their buffers twice.
        unsafe { burst.forget(count) };
        Completions { pool: self.0, count, packets: burst.packets[start..start + count].iter() }
    }
}

/// A completed packet, as its owner needs it: the buffer's number, and where the frame lies.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Number under which the buffer was lent. It can be lent again from now on.
    pub number: u32,
    /// First byte of the frame.
    pub start: NonNull<u8>,
    /// Bytes in front of `start` that belong to the buffer.
    pub headroom: usize,
    /// Length of the frame in bytes.
    pub len: usize,
    /// The packet's flags.
    pub flags: Flags,
}

/// Iterator over packets that are completed together; see [`LentPoolId::complete`]. Packets that are not taken from
/// it are completed too, but not reported.
pub struct Completions<'a> {
    pool: NonNull<Shared>,
    /// References to the pool, one for each packet. They keep the pool alive until they are dropped at the end.
    count: usize,
    packets: std::slice::Iter<'a, MaybeUninit<Packet>>,
}

impl Iterator for Completions<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        // SAFETY: `complete` took these packets out of the initialised range of their burst. The burst is
        // borrowed as long as this iterator lives, so nobody overwrites them.
        let packet = unsafe { self.packets.next()?.assume_init_ref() };
        let (slot, offset) = (packet.buffer.slot(), isize::from(packet.offset));
        // SAFETY: `data` comes from `Loan::start`, a `NonNull`, and a packet's offset stays within its buffer.
        // The memory is mapped, as `count` references keep the pool alive, and the pool keeps the memory.
        let start = unsafe { NonNull::new_unchecked(slot.data.offset(offset)) };
        let headroom = usize::from(slot.headroom).wrapping_add_signed(offset);
        Some(Completion { number: slot.index, start, headroom, len: packet.len as usize, flags: packet.flags })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.packets.size_hint()
    }
}

impl ExactSizeIterator for Completions<'_> {}

impl Drop for Completions<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: `count` is the number of packets, each of which had a buffer outside the depot and so a
            // reference to the pool. The packets were forgotten, so this is the only place that drops those
            // references.
            unsafe { release(self.pool, self.count) };
        }
    }
}

/// A buffer to be lent.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    /// Number that identifies the buffer when its packet is completed.
    pub number: usize,
    /// Address at which a frame is to be written.
    pub start: NonNull<u8>,
    /// Writable bytes in front of `start`.
    pub headroom: usize,
    /// Writable bytes from `start` on; those beyond 32,000 are not used.
    pub size: usize,
}

/// A request for buffers, which the lender fills.
pub struct Loans<'a> {
    pool: &'a LentPool,
    out: &'a mut [SlotRef; MAGAZINE],
    len: usize,
    most: usize,
    least: usize,
}

impl Loans<'_> {
    /// Returns the pool that the buffers are requested for.
    pub fn pool(&self) -> LentPoolId {
        self.pool.id()
    }

    /// Returns how many more buffers are wanted.
    #[inline]
    pub fn room(&self) -> usize {
        self.most - self.len
    }

    /// Returns the smallest useful size of a buffer in bytes.
    pub fn least(&self) -> usize {
        self.least
    }

    /// Lends buffers, as many as there is [room](Self::room) for, and returns their number.
    ///
    /// # Safety
    /// Each `number` is not lent now. The bytes of each buffer, headroom included, stay mapped as long as the `memory`
    /// that the pool was made with, and are at least the [least](Self::least). Nobody else in this process accesses
    /// them before the buffer is completed or the pool has been dropped.
    ///
    /// # Panics
    /// If a `number` is not below the pool's number of buffers.
    #[inline(always)]
    pub unsafe fn lend(&mut self, buffers: impl Iterator<Item = Loan>) -> usize {
        let (slots, before) = (&self.pool.0.shared().depot.slots[..], self.len);
        let mut len = before;
        for (place, Loan { number, start, headroom, size }) in self.out[before..self.most].iter_mut().zip(buffers) {
            let slot = slots[number].get();
            // SAFETY: `number` is not lent now, by this function's contract, so its slot is in no depot, ring
            // or packet and nobody else accesses it. `slot` is the address of a table entry, so it is not null.
            unsafe {
                (*slot).data = start.as_ptr();
                (*slot).iova = start.as_ptr() as u64;
                (*slot).size = size.min(32_000) as u16;
                (*slot).headroom = headroom as u16;
                *place = NonNull::new_unchecked(slot);
            }
            len += 1;
        }
        self.len = len;
        len - before
    }
}

/// A queue's own lent buffers. They are handed out in the order in which they were lent.
pub struct LentCache {
    pool: Option<LentPool>,
    least: usize,
    /// Start of the range of `slots` that is not handed out yet; the oldest is there.
    start: usize,
    /// End of that range.
    end: usize,
    slots: [SlotRef; MAGAZINE],
}

// SAFETY: the slots in it belong to the cache alone, and their pool is `Sync`.
unsafe impl Send for LentCache {}

impl LentCache {
    /// Creates a cache without a pool, for buffers of at least `least` bytes.
    pub fn new(least: usize) -> Self {
        Self { pool: None, least, start: 0, end: 0, slots: [NonNull::dangling(); MAGAZINE] }
    }

    /// Returns the buffers that were not handed out to their pool, and takes further ones from `pool`.
    pub fn set_pool(&mut self, pool: Option<LentPool>) {
        if let Some(LentPool(old)) = std::mem::replace(&mut self.pool, pool) {
            // SAFETY: `slots[start..end]` were taken from this pool, are outside its depot and belong to this
            // object, which forgets them in the next line.
            unsafe { put(old.0, &self.slots[self.start..self.end]) };
            (self.start, self.end) = (0, 0);
        }
    }

    /// Takes up to `want` buffers. If there are none left, and none came back unused, `lend` is called to lend more.
    #[inline]
    pub fn take(&mut self, want: usize, lend: impl FnOnce(&mut Loans<'_>)) -> impl ExactSizeIterator<Item = Buffer> {
        if self.start == self.end {
            self.fill(want, lend);
        }
        let n = want.min(self.end - self.start);
        let slots = &self.slots[self.start..self.start + n];
        self.start += n;
        // SAFETY: the slot is outside the depot and has just left the range that this object owns, so the new
        // handle alone owns it. Buffers that the iterator does not hand out are lost until the pool is dropped.
        slots.iter().map(|&slot| unsafe { Buffer::new(slot) })
    }

    #[inline(never)]
    fn fill(&mut self, want: usize, lend: impl FnOnce(&mut Loans<'_>)) {
        let Some(pool) = &self.pool else { return };
        let shared = pool.0.shared();
        (self.start, self.end) = (0, shared.depot.take(&mut self.slots));
        if self.end == 0 {
            let out = &mut self.slots;
            let most = want.min(MAGAZINE);
            let least = self.least;
            let mut loans = Loans { pool, out, len: 0, most, least };
            lend(&mut loans);
            self.end = loans.len;
        }
        shared.references.fetch_add(self.end, Ordering::Relaxed);
    }

    /// Whether there is a pool, so that buffers may be lent.
    #[inline]
    pub fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// Whether a packet's buffer is of the present pool.
    #[inline]
    pub fn is_lent(&self, packet: &Packet) -> bool {
        self.pool.as_ref().is_some_and(|pool| packet.buffer.slot().pool == pool.0.0)
    }
}

impl Drop for LentCache {
    fn drop(&mut self) {
        self.set_pool(None);
    }
}
