//! A queue's own free buffers: [`Cache`] hands them out, [`Reclaimer`] takes them back.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::Buffer;
use crate::depot::MAGAZINE;
use crate::pool::{Mempool, Shared, SlotRef, put};

/// A stack of free buffers that belongs to one queue.
pub struct Cache {
    pool: Mempool,
    pub(crate) free: usize,
    pub(crate) slots: [SlotRef; 2 * MAGAZINE],
}

// SAFETY: owns the slots that it holds.
unsafe impl Send for Cache {}

impl Cache {
    pub(crate) fn new(pool: Mempool) -> Self {
        Self { pool, free: 0, slots: [NonNull::dangling(); 2 * MAGAZINE] }
    }

    /// The pool behind.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Up to `want` (at most [`MAGAZINE`]) buffers; fewer when the pool has run dry, which is counted. Those that are
    /// not taken from the iterator stay in the cache.
    #[inline]
    pub fn buffers(&mut self, want: usize) -> impl ExactSizeIterator<Item = Buffer> {
        let want = want.min(MAGAZINE);
        while self.free < want && self.refill() > 0 {}
        let mut free = self.free;
        (free - want.min(free)..free).map(move |_| {
            free -= 1;
            self.free = free;
            // SAFETY: `free` is below the length of `slots`, and had slots below it. This one is outside the depot and
            // has just left the cache, so the buffer alone owns it.
            unsafe { Buffer::new(*self.slots.get_unchecked(free)) }
        })
    }

    /// Out of line for its rarity: once in [`MAGAZINE`] packets.
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
            // SAFETY: what is left in the cache is its own.
            unsafe { put(self.pool.0, some) };
        }
    }
}

/// Gathers buffers on their way back and returns them to their pool by the magazine.
pub struct Reclaimer {
    pub(crate) pool: NonNull<Shared>,
    pub(crate) len: usize,
    pub(crate) slots: [SlotRef; MAGAZINE],
}

// SAFETY: owns the buffers that it holds.
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
    /// They are initialised, and not used again.
    #[inline]
    pub unsafe fn add(&mut self, buffers: &[MaybeUninit<Buffer>]) {
        // SAFETY: initialised, says the caller.
        self.add_all(buffers, |buffer| unsafe { buffer.assume_init_ref() }.home());
    }

    /// Takes back what has these homes; the caller gives it up.
    #[inline]
    pub(crate) fn add_all<T>(&mut self, mut items: &[T], home: impl Fn(&T) -> (NonNull<Shared>, SlotRef)) {
        while !items.is_empty() {
            let mut added = 0;
            for (item, place) in items.iter().zip(&mut self.slots[self.len..]) {
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

    /// Returns what was gathered. Called when full, on a change of pool and on drop.
    #[cold]
    pub fn flush(&mut self) {
        if self.len > 0 {
            // SAFETY: `add` got them from packets of this pool, which gave them up.
            unsafe { put(self.pool, &self.slots[..self.len]) };
            // The pool may be gone now, and another one at its address.
            (self.pool, self.len) = (NonNull::dangling(), 0);
        }
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.flush();
    }
}
