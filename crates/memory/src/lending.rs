//! Buffers that somebody else owns, such as a guest, and lends to a queue: what a card receives then lies where it is to
//! go. After Kawashima, *Software Physical/Virtual Rx Queue Mapping* (IEEE TNSM 2021).
//!
//! A [`Lender`] (a virtqueue) lends to a [`Borrower`] (the Rx queue of a card) by their [`Lending`], which both share for
//! as long as they live. Guests come and go meanwhile: each *term* of lending, from [`Lending::begin`] to
//! [`Lending::end`], has a pool of its own, of the guest's buffers. A packet of such a pool has the flag
//! [`Flags::LENT`](crate::Flags::LENT). It ends in one of two ways: [settled](Lent::settle) by the lender, who hands the
//! buffer with the frame to its owner; or dropped, and its buffer is ready for the next frame.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::depot::MAGAZINE;
use crate::pool::{Shared, Slot, SlotRef, put, release};
use crate::slots::Memory;
use crate::{Buffer, Burst, Flags, ForeignMemory, Mempool, Packet};

/// Who lends buffers.
pub trait Lender: Send + Sync {
    /// Lends what there is, up to the room of `loans`; nothing if that is of another term than the lender's own.
    fn lend(&self, loans: &mut Loans<'_>);
}

/// How a device is given the memory that lent buffers lie in.
pub trait Grant: Send + Sync {
    /// Lets the device use memory, at the addresses of this process. The error is one line, with cause and remedy.
    fn grant(&self, memory: &Arc<ForeignMemory>) -> Result<(), String>;

    /// Takes that back. The device was told to stop using it before.
    fn revoke(&self, memory: &Arc<ForeignMemory>);
}

/// What a lender and a borrower share.
pub struct Lending {
    lender: Box<dyn Lender>,
    /// Changes with each begin and end.
    term: AtomicU32,
    inner: Mutex<Inner>,
    host_buffers: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// Of the borrower.
    device: Option<Box<dyn Grant>>,
    /// What the device was granted.
    granted: Vec<Arc<ForeignMemory>>,
    pool: Option<Mempool>,
    /// The pool of a term that was to end, and of which not all is back yet: the device may still use its memory.
    ending: Option<Mempool>,
}

impl Inner {
    /// Whether nothing of the last term is out any more.
    fn has_ended(&mut self) -> bool {
        // The borrower's handle counts too: it goes when the borrower has seen the end.
        self.ending.take_if(|pool| pool.outstanding(1) == 0);
        self.ending.is_none()
    }
}

impl Lending {
    /// Most buffers that are lent at a time.
    pub const MOST: usize = 1 << 15;

    /// Nothing is lent yet.
    pub fn new(lender: Box<dyn Lender>) -> Arc<Self> {
        let (term, inner, host_buffers) = Default::default();
        Arc::new(Self { lender, term, inner, host_buffers })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a term, with up to `slots` buffers lent at a time, of a guest with this memory, which the borrower's device
    /// is granted. `None` if there is no borrower, or buffers of the term before are still out.
    pub fn begin(&self, slots: usize, memory: &[Arc<ForeignMemory>]) -> Result<Option<Lent>, String> {
        let mut inner = self.inner();
        if !inner.has_ended() {
            return Ok(None);
        }
        let Inner { device: Some(device), granted, pool, .. } = &mut *inner else { return Ok(None) };
        assert!(pool.is_none() && slots <= Self::MOST, "one term at a time, of bounded size");
        let among = |one: &Arc<ForeignMemory>, all: &[_]| all.iter().any(|other| Arc::ptr_eq(one, other));
        granted.retain(|old| {
            let stays = among(old, memory);
            if !stays {
                device.revoke(old);
            }
            stays
        });
        for new in memory {
            if !among(new, granted) {
                device.grant(new)?;
                granted.push(new.clone());
            }
        }
        let new = Mempool::lent(slots, memory.into());
        let lent = Lent(new.0);
        *pool = Some(new);
        self.term.fetch_add(1, Ordering::Release);
        Ok(Some(lent))
    }

    /// Ends the term and waits until all that was lent is back, for at most `limit`. The lender lends no more before it
    /// calls this. What is not settled is the lender's again without a frame.
    ///
    /// If the limit passes, the term goes on ending: this can be called again, no other term begins meanwhile, and the
    /// memory stays with the device, which may still write there.
    pub fn end(&self, limit: Duration) -> Result<(), String> {
        {
            let mut inner = self.inner();
            if let Some(pool) = inner.pool.take() {
                inner.ending = Some(pool);
                self.term.fetch_add(1, Ordering::Release);
            }
        }
        let start = Instant::now();
        loop {
            let mut inner = self.inner();
            if inner.has_ended() {
                return Ok(());
            }
            if start.elapsed() >= limit {
                let (out, ms) = (inner.ending.as_ref().map_or(0, |pool| pool.outstanding(1)), limit.as_millis());
                return Err(format!("{out} lent buffers did not come back within {ms} ms"));
            }
            drop(inner);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether no term runs, and none is ending.
    pub fn is_idle(&self) -> bool {
        let inner = self.inner();
        inner.pool.is_none() && inner.ending.is_none()
    }

    /// Takes all memory from the borrower's device. `false`, and nothing happens, while buffers of a term are out: the
    /// next call, or the next term, takes it then.
    pub fn revoke(&self) -> bool {
        let mut inner = self.inner();
        if inner.pool.is_some() || !inner.has_ended() {
            return false;
        }
        let Inner { device, granted, .. } = &mut *inner;
        let granted = std::mem::take(granted);
        device.iter().for_each(|device| granted.iter().for_each(|memory| device.revoke(memory)));
        true
    }

    /// How many buffers of its own the borrower took because it was lent too few.
    pub fn host_buffers(&self) -> u64 {
        self.host_buffers.load(Ordering::Relaxed)
    }

    /// Whether there is a borrower.
    pub fn is_borrowed(&self) -> bool {
        self.inner().device.is_some()
    }
}

impl fmt::Debug for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending").field("term", &self.term).finish_non_exhaustive()
    }
}

impl Mempool {
    /// A pool of no buffers, for those that are lent.
    fn lent(slots: usize, memory: Box<[Arc<ForeignMemory>]>) -> Self {
        let none =
            |index, pool| Slot { data: std::ptr::null_mut(), iova: 0, pool, index: index as u32, size: 0, headroom: 0 };
        Self::of(Memory::Lent(memory), slots, none)
    }
}

/// The pool of a term, as its lender knows it: which one it is, without keeping it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent(NonNull<Shared>);

// SAFETY: an identity, which nothing is reached through but by way of a packet.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// The number that the packet's buffer was lent by, if that was in this term.
    #[inline]
    pub fn number(&self, packet: &Packet) -> Option<u32> {
        let slot = packet.buffer.slot();
        (slot.pool == self.0).then_some(slot.index)
    }

    /// Settles packets at the front of a burst, up to the first that is not of this term, has further segments or is not
    /// `wanted`: they leave the burst, and their buffers go to their owner.
    #[inline(always)]
    pub fn settle(self, burst: &mut Burst, wanted: impl Fn(&Packet) -> bool) -> Settling<'_> {
        let own = |packet: &&Packet| packet.buffer.slot().pool == self.0 && !packet.is_chained() && wanted(packet);
        let (start, count) = (burst.start, burst.iter().take_while(own).count());
        // SAFETY: what is left of them is only looked at.
        unsafe { burst.forget(count) };
        Settling { pool: self.0, count, packets: burst.packets[start..start + count].iter() }
    }
}

/// A packet that is settled: where its owner finds the frame.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// By which the buffer was lent. From now on it can be lent again.
    pub number: u32,
    /// The frame, and how many bytes in front of it belong to the buffer.
    pub start: NonNull<u8>,
    /// See `start`.
    pub headroom: usize,
    /// Bytes of the frame.
    pub len: usize,
    /// What was known of it.
    pub flags: Flags,
}

/// Packets that are settled together; see [`Lent::settle`]. Those that are not asked for are settled too, and nobody hears of
/// them.
pub struct Settling<'a> {
    pool: NonNull<Shared>,
    /// References that are given up at the end: until then they keep the pool.
    count: usize,
    packets: std::slice::Iter<'a, MaybeUninit<Packet>>,
}

impl Iterator for Settling<'_> {
    type Item = Settled;

    #[inline(always)]
    fn next(&mut self) -> Option<Settled> {
        // SAFETY: packets that have left their burst; nobody writes there as long as the burst is borrowed.
        let packet = unsafe { self.packets.next()?.assume_init_ref() };
        let (slot, offset) = (packet.buffer.slot(), isize::from(packet.offset));
        // SAFETY: a packet keeps to its buffer, and the term's pool keeps the memory.
        let start = unsafe { NonNull::new_unchecked(slot.data.offset(offset)) };
        let headroom = usize::from(slot.headroom).wrapping_add_signed(offset);
        Some(Settled { number: slot.index, start, headroom, len: packet.len as usize, flags: packet.flags })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.packets.size_hint()
    }
}

impl ExactSizeIterator for Settling<'_> {}

impl Drop for Settling<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: each packet's buffer was outside the depot and so a reference, given up with the packet.
            unsafe { release(self.pool, self.count) };
        }
    }
}

/// A buffer to be lent.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    /// What it is settled by.
    pub number: usize,
    /// Where a frame is to be written.
    pub start: NonNull<u8>,
    /// Bytes in front of that which may be written too.
    pub headroom: usize,
    /// Bytes from `start`; those beyond 32,000 are not used.
    pub size: usize,
}

/// Room for buffers to be lent.
pub struct Loans<'a> {
    pool: &'a Mempool,
    out: &'a mut [SlotRef; MAGAZINE],
    len: usize,
    most: usize,
    least: usize,
}

impl Loans<'_> {
    /// Whether they are for a term.
    pub fn are_for(&self, lent: Lent) -> bool {
        self.pool.0 == lent.0
    }

    /// How many more are wanted.
    #[inline]
    pub fn room(&self) -> usize {
        self.most - self.len
    }

    /// The smallest size of a buffer that is of use.
    pub fn least(&self) -> usize {
        self.least
    }

    /// Lends buffers, as many as there is [room](Self::room) for. Returns how many.
    ///
    /// # Safety
    /// Each `number` is below the term's count of slots, and is not lent now. The bytes lie in the memory that the term was
    /// begun with, at least the [least](Self::least) of each; nobody else in this process accesses them before the buffer is
    /// settled or the term has ended.
    #[inline(always)]
    pub unsafe fn lend(&mut self, buffers: impl Iterator<Item = Loan>) -> usize {
        let (slots, before) = (&self.pool.shared().depot.slots[..], self.len);
        let mut len = before;
        for (place, Loan { number, start, headroom, size }) in self.out[before..self.most].iter_mut().zip(buffers) {
            let slot = slots[number].get();
            // SAFETY: nobody has the slot, says the caller.
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

/// Takes what is lent. Belongs to one queue.
pub struct Borrower {
    lending: Arc<Lending>,
    least: usize,
    term: u32,
    pool: Option<Mempool>,
    /// Borrowed, and not handed out yet: `slots[start..end]`, the oldest first.
    start: usize,
    end: usize,
    slots: [SlotRef; MAGAZINE],
}

// SAFETY: owns the slots that it holds.
unsafe impl Send for Borrower {}

impl Borrower {
    /// A queue of a device that borrows from now on buffers of `least` bytes or more; an error if there is one already.
    pub fn new(lending: &Arc<Lending>, device: Box<dyn Grant>, least: usize) -> Result<Self, String> {
        let mut inner = lending.inner();
        if inner.device.is_some() {
            return Err("two queues cannot be mapped to one; map each to a queue of its own".into());
        }
        inner.device = Some(device);
        let lending = lending.clone();
        Ok(Self { lending, least, term: 0, pool: None, start: 0, end: 0, slots: [NonNull::dangling(); MAGAZINE] })
    }

    /// Whether a term has begun or ended. Then give all buffers of the last one back (those that a device has, it must be
    /// told to stop using first), and [renew](Self::renew).
    #[inline]
    pub fn changed(&self) -> bool {
        self.lending.term.load(Ordering::Relaxed) != self.term
    }

    /// Takes part in the term that there is now, if there is one.
    pub fn renew(&mut self) {
        self.give_up();
        let inner = self.lending.inner();
        self.term = self.lending.term.load(Ordering::Acquire);
        self.pool = inner.pool.clone();
    }

    /// Up to `want` buffers, in the order in which they were lent.
    #[inline]
    pub fn borrow(&mut self, want: usize) -> impl ExactSizeIterator<Item = Buffer> {
        if self.start == self.end {
            self.fill(want);
        }
        let n = want.min(self.end - self.start);
        let slots = &self.slots[self.start..self.start + n];
        self.start += n;
        // SAFETY: outside the depot, and no longer this object's. Those that the iterator does not hand out are lost
        // until the term ends.
        slots.iter().map(|&slot| unsafe { Buffer::new(slot) })
    }

    /// Those that came back unused first.
    #[inline(never)]
    fn fill(&mut self, want: usize) {
        let Some(pool) = &self.pool else { return };
        (self.start, self.end) = (0, pool.shared().depot.take(&mut self.slots));
        if self.end == 0 {
            let most = want.min(MAGAZINE);
            let (out, least) = (&mut self.slots, self.least);
            let mut loans = Loans { pool, out, len: 0, most, least };
            self.lending.lender.lend(&mut loans);
            self.end = loans.len;
        }
        pool.shared().references.fetch_add(self.end, Ordering::Relaxed);
    }

    /// Whether there is a term, in which something may be lent.
    #[inline]
    pub fn may_borrow(&self) -> bool {
        self.pool.is_some()
    }

    /// Whether a packet's buffer is one of those that are lent now.
    #[inline]
    pub fn has_lent(&self, packet: &Packet) -> bool {
        self.pool.as_ref().is_some_and(|pool| packet.buffer.slot().pool == pool.0)
    }

    /// Counts buffers of its own that the queue took for want of lent ones.
    pub fn took_own(&self, buffers: usize) {
        self.lending.host_buffers.fetch_add(buffers as u64, Ordering::Relaxed);
    }

    /// Gives up the last term.
    fn give_up(&mut self) {
        if let Some(pool) = self.pool.take() {
            // SAFETY: this object's own, outside the depot.
            unsafe { put(pool.0, &self.slots[self.start..self.end]) };
            (self.start, self.end) = (0, 0);
        }
    }
}

impl Drop for Borrower {
    fn drop(&mut self) {
        self.give_up();
        self.lending.inner().device = None;
    }
}
