//! A pool that exchanges buffers, one for one, with others who have the same memory mapped: programs, by way of rings that name
//! buffers by number. A frame so passes between them and the pool's packets without a copy.
//!
//! Others may name any number at any time. What they name is taken only if it is theirs, which a word for each buffer says
//! that they cannot reach ([`Claim`]); and the pool gives only what is its own. So each buffer is free, theirs or the pool's
//! at any time, and as many are the pool's as were at the beginning.
//!
//! A packet's bytes are seen by whoever has mapped the memory, who can change them at any time; within this process, its
//! owner alone reaches them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::depot::MAGAZINE;
use crate::owners::{FREE, OURS, Owners, THEIRS};
use crate::pool::Slot;
use crate::slots::{Memory, slot_ref};
use crate::{Addressing, Buffer, DmaRegion, Error, Flags, Mempool, Packet, RegionConfig};

/// What an [`Exchange`] is made of.
#[derive(Clone, Debug)]
pub struct ExchangeConfig {
    /// Bytes in front of the first buffer that are something else; a multiple of `size`.
    pub front: usize,
    /// How many buffers, free or not; their numbers count from 0. Up to 16,777,216.
    pub buffers: usize,
    /// How many of these are the pool's: the last ones, at least one.
    pub own: usize,
    /// Bytes of a buffer, without any headroom: 64 to 16,384, a power of two.
    pub size: usize,
    /// The memory beneath. Its length is derived.
    pub region: RegionConfig,
}

/// See the module.
pub struct Exchange {
    pool: Mempool,
    owners: Owners,
}

impl Exchange {
    /// Allocates the memory and fills the pool. All other buffers are free.
    pub fn new(config: &ExchangeConfig) -> Result<Arc<Self>, Error> {
        let &ExchangeConfig { front, buffers, own, size, ref region } = config;
        let right = (64..=16_384).contains(&size) && size.is_power_of_two() && front.is_multiple_of(size);
        if !right || !(1..=1 << 24).contains(&buffers) || !(1..=buffers).contains(&own) {
            return Err(Error::Config("buffers to exchange: 1 to 16777216 of 64 to 16384 bytes, a power of two"));
        }
        if region.addressing == Addressing::Physical {
            return Err(Error::PhysicalShared);
        }
        // As sizes of pages are multiples of the buffers', none straddles two pages.
        let region = DmaRegion::new(front + buffers * size, region)?;
        let at = |number| front + number * size;
        let slot = |number, pool| {
            let (data, iova) = (region.at(at(number)), region.iova(at(number)));
            Slot { data, iova, pool, index: number as u32, size: size as u16, headroom: 0 }
        };
        let pool = Mempool::of(Memory::Own(region.clone()), buffers, slot);
        let owners = Owners::new(buffers);
        let ours = buffers - own..buffers;
        ours.clone().for_each(|number| assert!(owners.change(number as u32, FREE, OURS)));
        let ours: Vec<_> = pool.shared().depot.slots[ours].iter().map(slot_ref).collect();
        ours.chunks(MAGAZINE).for_each(|some| pool.shared().depot.put(some));
        Ok(Arc::new(Self { pool, owners }))
    }

    /// The pool, of buffers without headroom. [`Mempool::capacity`] counts all that it could have.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Buffers, free or not.
    pub fn buffers(&self) -> usize {
        self.owners.len()
    }

    /// How many buffers are free, theirs and the pool's. Exact while nobody exchanges any.
    pub fn books(&self) -> [usize; 3] {
        [FREE, THEIRS, OURS].map(|of| self.owners.count(of))
    }

    /// A free buffer is theirs from now on. Whether it was free.
    pub fn lend(&self, number: u32) -> bool {
        self.owners.change(number, FREE, THEIRS)
    }

    /// As [`lend`](Self::lend), with a word in its first bytes.
    pub fn lend_with(&self, number: u32, word: u32) -> bool {
        let free = self.owners.change(number, FREE, OURS);
        if free {
            self.first_word(number).store(word, Ordering::Relaxed);
            self.owners.give(number, THEIRS);
        }
        free
    }

    /// What was theirs is free again. Whether it was theirs.
    pub fn take_back(&self, number: u32) -> bool {
        self.owners.change(number, THEIRS, FREE)
    }

    /// As [`take_back`](Self::take_back). Returns what its first bytes say.
    pub fn take_back_with(&self, number: u32) -> Option<u32> {
        let claim = self.claim(number)?;
        let word = self.first_word(number).load(Ordering::Relaxed);
        std::mem::forget(claim);
        self.owners.give(number, FREE);
        Some(word)
    }

    /// Of a buffer that was made ours just now.
    fn first_word(&self, number: u32) -> &AtomicU32 {
        let slot = slot_ref(&self.pool.shared().depot.slots[number as usize]);
        // SAFETY: the slot is never written, and the buffer lies in the region, which the pool keeps: 64 bytes or more, at a
        // multiple of that. The caller alone has it in this process; other processes may write it, as an atomic allows.
        unsafe { AtomicU32::from_ptr(slot.as_ref().data.cast()) }
    }

    /// Takes a buffer that others name; `None` if there is none of this number, or it is not theirs.
    #[inline]
    pub fn claim(&self, number: u32) -> Option<Claim<'_>> {
        // Made only then: one that is dropped gives its buffer back.
        self.owners.claim(number).then(|| Claim { exchange: self, number })
    }

    /// Whether [`Claim::swap`] takes the packet: one of this pool, in one segment that begins where its buffer does.
    #[inline]
    pub fn fits(&self, packet: &Packet) -> bool {
        packet.buffer.slot().pool == self.pool.0 && packet.offset == 0 && !packet.is_chained()
    }
}

/// A buffer that was theirs. It is again when this is dropped.
pub struct Claim<'a> {
    exchange: &'a Exchange,
    number: u32,
}

impl Claim<'_> {
    /// The packet's buffer becomes theirs, with what lies in it; the claimed one becomes the packet's, which is empty then and
    /// has no flags. Returns the number of what is theirs now.
    ///
    /// # Panics
    /// If the packet does not [fit](Exchange::fits).
    #[inline]
    pub fn swap(self, packet: &mut Packet) -> u32 {
        let Self { exchange, number } = self;
        assert!(exchange.fits(packet), "a packet that cannot be exchanged");
        std::mem::forget(self);
        let slot = slot_ref(&exchange.pool.shared().depot.slots[number as usize]);
        // SAFETY: the claim made the slot ours, and it is in no depot, cache or packet, as only what was given to others has been
        // theirs. The packet's old buffer leaves the pool as this one comes, so its reference becomes this one's.
        let theirs = std::mem::replace(&mut packet.buffer, unsafe { Buffer::new(slot) });
        let given = theirs.slot().index;
        std::mem::forget(theirs);
        (packet.flags, packet.len) = (Flags::default(), 0);
        exchange.owners.give(given, THEIRS);
        given
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.exchange.owners.give(self.number, THEIRS);
    }
}
