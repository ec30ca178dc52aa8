//! Pools in memory that others have mapped too, which swap buffers with them, one for one. So a frame passes between
//! them and the pool's packets without a copy.
//!
//! Everyone who has mapped the memory sees a packet's bytes and can change them at any time. Within this
//! process, only the packet's owner accesses them.

use crate::depot::{MAGAZINE, slot_ref};
use crate::packet::Slot;
use crate::shared::Memory;
use crate::{Addressing, Buffer, DmaRegion, Error, Flags, Mempool, Packet, RegionConfig};

/// Configuration of a [`SwapPool`].
#[derive(Clone, Debug)]
pub struct SwapPoolConfig {
    /// Bytes in front of the first buffer that serve another purpose; a multiple of `size`.
    pub front: usize,
    /// Number of buffers, inside the pool or outside; they are numbered from 0. Up to 16,777,216.
    pub buffers: usize,
    /// How many of these are inside the pool at first: the last ones, at least one.
    pub own: usize,
    /// Size of a buffer in bytes, without headroom: 64 to 16,384, a power of two.
    pub size: usize,
    /// Memory of the buffers. Its length is derived.
    pub region: RegionConfig,
}

/// A pool of some of the buffers in its memory. The others are outside: they belong to others, and the caller keeps
/// records of whom. They come into the pool by a [swap](Self::swap), so the number of buffers inside never changes.
pub struct SwapPool {
    pool: Mempool,
    front: usize,
}

impl SwapPool {
    /// Allocates the memory and fills the pool.
    pub fn new(config: &SwapPoolConfig) -> Result<Self, Error> {
        let &SwapPoolConfig { front, buffers, own, size, ref region } = config;
        let right = (64..=16_384).contains(&size) && size.is_power_of_two() && front.is_multiple_of(size);
        if !right || !(1..=1 << 24).contains(&buffers) || !(1..=buffers).contains(&own) {
            return Err(Error::Config("buffers to exchange: 1 to 16777216 of 64 to 16384 bytes, a power of two"));
        }
        if region.addressing == Addressing::Physical {
            return Err(Error::PhysicalShared);
        }
        // A page's size is a multiple of a buffer's, so no buffer straddles two pages.
        let region = DmaRegion::new(front + buffers * size, region)?;
        let slot = |number, pool| {
            let (data, iova) = (region.at(front + number * size), region.iova(front + number * size));
            Slot { data, iova, pool, index: number as u32, size: size as u16, headroom: 0 }
        };
        let pool = Mempool::of(Memory::Own(region.clone()), buffers, slot);
        let own: Vec<_> = pool.shared().depot.slots[buffers - own..].iter().map(slot_ref).collect();
        own.chunks(MAGAZINE).for_each(|some| pool.shared().depot.put(some));
        Ok(Self { pool, front })
    }

    /// Returns the pool; its buffers have no headroom. [`Mempool::capacity`] counts the buffers of all owners.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Returns the address of a buffer, for raw pointers and atomics. Others may write there at any time.
    ///
    /// # Panics
    /// If there is no such buffer.
    pub fn as_ptr(&self, number: u32) -> *mut u8 {
        assert!((number as usize) < self.pool.capacity(), "no buffer {number}");
        self.pool.region().at(self.front + number as usize * self.pool.buffer_size())
    }

    /// Whether [`swap`](Self::swap) accepts the packet: it must be of this pool, in one segment that starts where
    /// its buffer does.
    #[inline]
    pub fn can_swap(&self, packet: &Packet) -> bool {
        packet.buffer.slot().pool == self.pool.0 && packet.offset == 0 && !packet.is_chained()
    }

    /// Swaps a buffer from outside with the packet's, which leaves the pool with the frame in it. The packet gets the
    /// other one, is empty and has no flags. Returns the number of the buffer that is outside now.
    ///
    /// # Safety
    /// [`can_swap`](Self::can_swap) holds for the packet. The buffer `number` is outside the pool: `new` left it there,
    /// or a swap returned it since it was last swapped in. The caller owns it and passes the ownership on: nobody else
    /// in this process swaps or accesses it.
    ///
    /// # Panics
    /// If there is no such buffer.
    #[inline]
    pub unsafe fn swap(&self, number: u32, packet: &mut Packet) -> u32 {
        debug_assert!(self.can_swap(packet), "a packet that cannot be exchanged");
        let slot = slot_ref(&self.pool.shared().depot.slots[number as usize]);
        // SAFETY: `number` is outside the pool by this function's contract, so its slot is in no depot, cache or
        // packet. The packet's old buffer leaves the pool in exchange and is forgotten below, so its reference to
        // the pool now counts for this one.
        let theirs = std::mem::replace(&mut packet.buffer, unsafe { Buffer::new(slot) });
        let given = theirs.slot().index;
        std::mem::forget(theirs);
        (packet.flags, packet.len) = (Flags::default(), 0);
        given
    }
}
