//! A queue's own free buffers: [`Cache`] hands them out, [`Reclaimer`] takes them back.

use std::ptr::NonNull;

use crate::depot::MAGAZINE;
use crate::pool::{Mempool, Shared, put};
use crate::{Burst, HEADROOM, Packet};

/// A stack of free buffers that belongs to one queue. `Send`, not `Sync`.
pub struct Cache {
    pool: Mempool,
    free: usize,
    slots: [u32; 2 * MAGAZINE],
}

impl Cache {
    pub(crate) fn new(pool: Mempool) -> Self {
        Self { pool, free: 0, slots: [0; 2 * MAGAZINE] }
    }

    /// The pool behind.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Takes up to `want` (at most [`MAGAZINE`]) slot numbers, fewer when the pool has run dry, which is counted.
    /// The caller owns the slots' buffers until it turns them into packets or gives them back as [`Owed`].
    #[inline]
    pub fn take(&mut self, want: usize) -> &[u32] {
        let want = want.min(MAGAZINE);
        if self.free < want {
            self.refill();
        }
        let taken = want.min(self.free);
        self.free -= taken;
        &self.slots[self.free..self.free + taken]
    }

    /// Below `take` for its rarity: once in [`MAGAZINE`] packets.
    #[cold]
    fn refill(&mut self) {
        let mut fresh = [0; MAGAZINE];
        let taken = self.pool.shared().take(&mut fresh);
        self.slots[self.free..self.free + taken].copy_from_slice(&fresh[..taken]);
        self.free += taken;
    }

    /// Where the device finds the frame of `slot`, behind the usual headroom.
    #[inline]
    pub fn iova(&self, slot: u32) -> u64 {
        self.pool.shared().slots[slot as usize].iova + HEADROOM as u64
    }

    /// A packet whose frame is what a device wrote to `slot` at [`iova`](Self::iova).
    ///
    /// # Safety
    /// `slot` was taken from this cache and is used for nothing else; `len` is at most the pool's buffer size; the
    /// device no longer writes to the buffer.
    #[inline]
    pub unsafe fn packet(&self, slot: u32, len: u16) -> Packet {
        debug_assert!(len as usize <= self.pool.buffer_size());
        // SAFETY: `slot` is one of this pool's, so it is inside the table; the headroom is inside every buffer.
        unsafe {
            let start = self.pool.shared().slots.get_unchecked(slot as usize).start;
            Packet::new(NonNull::new_unchecked(start.add(HEADROOM)), self.pool.0, slot, len)
        }
    }

    /// Fills the burst up to its limit with empty packets; fewer when the pool has run dry.
    pub fn alloc(&mut self, burst: &mut Burst) {
        while burst.room() > 0 {
            let pool = self.pool.0;
            let start = self.pool.0;
            let slots = self.take(burst.room());
            if slots.is_empty() {
                return;
            }
            for &slot in slots {
                // SAFETY: a cache holds a pool handle, so the pool is alive; the slot was taken just now, so the
                // packet alone owns it. An empty frame needs no content.
                let packet = unsafe {
                    let start = start.as_ref().slots[slot as usize].start;
                    Packet::new(NonNull::new_unchecked(start.add(HEADROOM)), pool, slot, 0)
                };
                burst.push(packet);
            }
        }
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

/// A buffer that a queue holds after its packet was consumed, owed to its pool. It must reach a [`Reclaimer`];
/// dropped elsewhere, it is leaked.
#[must_use]
#[derive(Debug)]
pub struct Owed {
    pub(crate) pool: NonNull<Shared>,
    pub(crate) slot: u32,
}

// SAFETY: owns its buffer; any thread may give it back.
unsafe impl Send for Owed {}

/// Gathers buffers on their way back and returns them to their pool by the magazine.
pub struct Reclaimer {
    pool: NonNull<Shared>,
    len: usize,
    slots: [u32; MAGAZINE],
}

// SAFETY: owns the buffers that it holds.
unsafe impl Send for Reclaimer {}

impl Default for Reclaimer {
    fn default() -> Self {
        Self { pool: NonNull::dangling(), len: 0, slots: [0; MAGAZINE] }
    }
}

impl Reclaimer {
    /// Takes one buffer back.
    #[inline]
    pub fn add(&mut self, owed: Owed) {
        if owed.pool != self.pool || self.len == MAGAZINE {
            self.flush();
            self.pool = owed.pool;
        }
        self.slots[self.len] = owed.slot;
        self.len += 1;
    }

    /// Returns what was gathered. Called when full, on a change of pool and on drop.
    #[cold]
    pub fn flush(&mut self) {
        if self.len > 0 {
            // SAFETY: `add` got them from `Owed`s of this pool, which gave them up.
            unsafe { put(self.pool, &self.slots[..self.len]) };
            self.len = 0;
        }
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.flush();
    }
}
