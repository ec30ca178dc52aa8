//! A queue's own free buffers: [`Cache`] hands them out, [`Reclaimer`] takes them back.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::depot::MAGAZINE;
use crate::packet::{Shared, SlotRef};
use crate::shared::put;
use crate::{Buffer, Mempool};

/// A stack of free buffers that belongs to one queue.
pub struct Cache {
    pool: Mempool,
    pub(crate) free: usize,
    pub(crate) slots: [SlotRef; 2 * MAGAZINE],
}

// SAFETY: the slots in it belong to the cache alone, and their pool is `Sync`.
unsafe impl Send for Cache {}

impl Mempool {
    /// Creates a cache of free buffers, for one queue.
    pub fn cache(&self) -> Cache {
        Cache { pool: self.clone(), free: 0, slots: [NonNull::dangling(); 2 * MAGAZINE] }
    }
}

impl Cache {
    /// Returns the pool that the cache takes its buffers from.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Takes up to `want` buffers, at most [`MAGAZINE`]. Yields fewer if the pool runs dry, which is counted.
    /// Buffers that are not taken from the iterator stay in the cache.
    #[inline]
    pub fn buffers(&mut self, want: usize) -> impl ExactSizeIterator<Item = Buffer> {
        let want = self.gather(want);
        let mut free = self.free;
        (free - want..free).map(move |_| {
            free -= 1;
            self.free = free;
            // SAFETY: `slots[..self.free]` are slots outside the depot that the cache owns, and `free` is below
            // its old length. This slot has just left that range, so the new handle alone owns it.
            unsafe { Buffer::new(*self.slots.get_unchecked(free)) }
        })
    }

    /// Takes up to `want` buffers, at most [`MAGAZINE`], as a slice. The caller moves them out of it; those that it leaves there
    /// are lost. Returns fewer if the pool runs dry, which is counted.
    #[inline]
    pub fn run(&mut self, want: usize) -> &[MaybeUninit<Buffer>] {
        let taken = self.gather(want);
        self.free -= taken;
        // SAFETY: the slots are within the array, and were `slots[free..]` outside the depot, which the cache owned and has just
        // given up. A `Buffer` is a handle to a slot and has no other field.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().add(self.free).cast(), taken) }
    }

    /// Gathers up to `want` buffers, at most [`MAGAZINE`], in the cache, and returns how many of these there are.
    #[inline]
    fn gather(&mut self, want: usize) -> usize {
        let want = want.min(MAGAZINE);
        while self.free < want && self.refill() > 0 {}
        want.min(self.free)
    }

    /// Moves a magazine from the depot to the cache and returns its number of slots. Not inlined, as it runs
    /// once in [`MAGAZINE`] packets.
    #[cold]
    pub(crate) fn refill(&mut self) -> usize {
        let room = self.slots[self.free..].first_chunk_mut().expect("room for a magazine");
        let taken = self.pool.shared().take(room);
        self.free += taken;
        taken
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        for some in self.slots[..self.free].chunks(MAGAZINE) {
            // SAFETY: the cache owns `slots[..free]`, which are outside the depot, and gives them up as it is
            // dropped.
            unsafe { put(self.pool.0, some) };
        }
    }
}

/// Gathers freed buffers and returns them to their pool in magazines.
pub struct Reclaimer {
    pub(crate) pool: NonNull<Shared>,
    pub(crate) len: usize,
    pub(crate) slots: [SlotRef; MAGAZINE],
}

// SAFETY: the slots in it belong to the reclaimer alone. They keep their pool alive, which is `Sync`.
unsafe impl Send for Reclaimer {}

impl Default for Reclaimer {
    fn default() -> Self {
        Self { pool: NonNull::dangling(), len: 0, slots: [NonNull::dangling(); MAGAZINE] }
    }
}

impl Reclaimer {
    /// Takes buffers back.
    ///
    /// # Safety
    /// The buffers are initialised and are not used again.
    #[inline]
    pub unsafe fn add(&mut self, buffers: &[MaybeUninit<Buffer>]) {
        // SAFETY: all of `buffers` are initialised, by this function's contract.
        self.add_all(buffers, |buffer| unsafe { buffer.assume_init_ref() }.home());
    }

    /// Takes back the slots that `home` returns for these items. The caller must give them up.
    #[inline]
    pub(crate) fn add_all<T>(&mut self, mut items: &[T], home: impl Fn(&T) -> (NonNull<Shared>, SlotRef)) {
        while !items.is_empty() {
            let (mut added, free) = (0, &mut self.slots[self.len..]);
            // Four at a time, as nearly always all of them have the same pool.
            for (four, places) in items.as_chunks::<4>().0.iter().zip(free.as_chunks_mut::<4>().0) {
                if four.iter().any(|item| home(item).0 != self.pool) {
                    break;
                }
                *places = std::array::from_fn(|i| home(&four[i]).1);
                added += 4;
            }
            for (item, place) in items[added..].iter().zip(&mut free[added..]) {
                let (pool, slot) = home(item);
                if pool != self.pool {
                    break;
                }
                *place = slot;
                added += 1;
            }
            self.len += added;
            items = &items[added..];
            if let Some(item) = items.first() {
                self.flush();
                self.pool = home(item).0;
            }
        }
    }

    /// Returns the gathered buffers to their pool. Called when it is full, when the pool changes, and on drop.
    #[cold]
    pub fn flush(&mut self) {
        if self.len > 0 {
            // SAFETY: `slots[..len]` are slots of `pool` outside its depot, whose buffers were given up to
            // `add_all` or `add_one`.
            unsafe { put(self.pool, &self.slots[..self.len]) };
            // The pool may have been freed by this, and another one may be allocated at its address.
            (self.pool, self.len) = (NonNull::dangling(), 0);
        }
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.flush();
    }
}
