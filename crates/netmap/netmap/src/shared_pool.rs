//! A pool that swaps buffers with programs, through rings that name buffers by number.
//!
//! A program may name any number at any time. A buffer that it names is taken only if it is external, according to
//! a table of owners that the program cannot access ([`Claim`]); and the pool gives away only its own buffers. So
//! at any time each buffer is free, external or the pool's, and the number of the pool's buffers never changes.

mod owners;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ringpass_memory::{Error, Mempool, Packet, SwapPool, SwapPoolConfig};

use owners::{EXTERNAL, FREE, Owners, POOL};

/// A pool that swaps buffers, one for one, with programs that have mapped the same memory. Buffers that a
/// program names are checked against a table of owners that it cannot access.
pub struct SharedPool {
    buffers: SwapPool,
    owners: Owners,
}

impl SharedPool {
    /// Allocates the memory and fills the pool. All buffers that are not the pool's are free.
    pub fn new(config: &SwapPoolConfig) -> Result<Arc<Self>, Error> {
        let (buffers, owners) = (SwapPool::new(config)?, Owners::new(config.buffers));
        let ours = config.buffers - config.own..config.buffers;
        ours.for_each(|number| assert!(owners.change(number as u32, FREE, POOL)));
        Ok(Arc::new(Self { buffers, owners }))
    }

    /// Returns the pool; its buffers have no headroom. [`Mempool::capacity`] counts the buffers of all owners.
    #[inline]
    pub fn pool(&self) -> &Mempool {
        self.buffers.pool()
    }

    /// Returns the number of buffers of all owners.
    #[inline]
    pub fn buffers(&self) -> usize {
        self.owners.len()
    }

    /// Returns how many buffers are free, external and the pool's. Exact while nobody swaps any.
    pub fn owner_counts(&self) -> [usize; 3] {
        [FREE, EXTERNAL, POOL].map(|of| self.owners.count(of))
    }

    /// Makes a free buffer external. Returns whether it was free.
    pub fn alloc_external(&self, number: u32) -> bool {
        self.owners.change(number, FREE, EXTERNAL)
    }

    /// Like [`alloc_external`](Self::alloc_external), but also writes `word` to the buffer's first four bytes.
    pub fn alloc_external_linked(&self, number: u32, word: u32) -> bool {
        let free = self.owners.change(number, FREE, POOL);
        if free {
            self.first_word(number).store(word, Ordering::Relaxed);
            self.owners.give(number, EXTERNAL);
        }
        free
    }

    /// Makes an external buffer free. Returns whether it was external.
    pub fn free_external(&self, number: u32) -> bool {
        self.owners.change(number, EXTERNAL, FREE)
    }

    /// Like [`free_external`](Self::free_external), but returns the buffer's first four bytes; `None` if it was
    /// not external.
    pub fn free_external_linked(&self, number: u32) -> Option<u32> {
        let claim = self.claim(number)?;
        let word = self.first_word(number).load(Ordering::Relaxed);
        std::mem::forget(claim);
        self.owners.give(number, FREE);
        Some(word)
    }

    /// Returns the first four bytes of a buffer that the caller has just made the pool's.
    fn first_word(&self, number: u32) -> &AtomicU32 {
        // SAFETY: the buffer lies in the region, which the pool keeps mapped, and has 64 bytes or more at a multiple
        // of its size. In this process only the caller accesses it, as it has changed the owner to `POOL`; other
        // processes may write it, which an atomic allows.
        unsafe { AtomicU32::from_ptr(self.buffers.as_ptr(number).cast()) }
    }

    /// Takes an external buffer by number. Returns `None` if there is no such buffer, or it is not external.
    #[inline]
    pub fn claim(&self, number: u32) -> Option<Claim<'_>> {
        // The `Claim` is made only if the claim succeeded, because dropping one gives the buffer back.
        self.owners.claim(number).then(|| Claim { exchange: self, number })
    }

    /// Whether [`Claim::swap`] accepts the packet: it must be of this pool, in one segment that starts where
    /// its buffer does.
    #[inline]
    pub fn can_swap(&self, packet: &Packet) -> bool {
        self.buffers.can_swap(packet)
    }
}

/// A buffer that was external and is now held for a [swap](Self::swap). Dropping this makes it external again.
pub struct Claim<'a> {
    exchange: &'a SharedPool,
    number: u32,
}

impl Claim<'_> {
    /// Swaps the claimed buffer with the packet's: the packet's becomes external, with the frame in it. The packet
    /// gets the claimed buffer, is empty and has no flags. Returns the number of the buffer that is external now.
    ///
    /// # Panics
    /// If [`SharedPool::can_swap`] returns `false` for the packet.
    #[inline]
    pub fn swap(self, packet: &mut Packet) -> u32 {
        let Self { exchange, number } = self;
        assert!(exchange.can_swap(packet), "a packet that cannot be exchanged");
        std::mem::forget(self);
        // SAFETY: the packet was checked in the line above. Buffers inside the pool have the owner `POOL`: `new` set
        // it, and each swap is this one. The claim found the owner `EXTERNAL` and made it `POOL`, so the buffer was
        // outside, and this thread alone has it.
        let given = unsafe { exchange.buffers.swap(number, packet) };
        exchange.owners.give(given, EXTERNAL);
        given
    }
}

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        self.exchange.owners.give(self.number, EXTERNAL);
    }
}
