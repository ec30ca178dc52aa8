//! Mempools: buffers of one size, cut from a region, which return to the pool from wherever they are freed.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::depot::slot_ref;
use crate::packet::{Shared, Slot};
use crate::shared::{Memory, release};
use crate::{DmaRegion, Error, PageSize, RegionConfig};

/// Bytes kept free in front of a received frame, for headers that are added later.
pub const HEADROOM: usize = 128;

/// Size of buffers that are an ordinary page each, with their headroom, so that none straddles two.
pub const PAGE_BUFFER_SIZE: usize = PageSize::Ordinary.bytes() - HEADROOM;

/// Configuration of a [`Mempool`]. The default has 4096 buffers of 2048 bytes on ordinary pages.
///
/// ```
/// use ringpass_memory::{Mempool, MempoolConfig};
///
/// let jumbo = MempoolConfig { buffers: 256, size: 9728, ..Default::default() };
/// assert_eq!(Mempool::new(&jumbo)?.buffer_size(), 9728);
/// assert!(Mempool::new(&MempoolConfig { size: 33_000, ..jumbo }).is_err());
/// # Ok::<(), ringpass_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MempoolConfig {
    /// Number of buffers: 1 to 16,777,216.
    pub buffers: usize,
    /// Largest frame that a buffer takes behind the headroom, in bytes: 64 to 32,000. With [`PAGE_BUFFER_SIZE`], each buffer is a page.
    pub size: usize,
    /// Memory of the pool. Its length is derived.
    pub region: RegionConfig,
}

impl Default for MempoolConfig {
    fn default() -> Self {
        Self { buffers: 4096, size: 2048, region: RegionConfig::default() }
    }
}

/// A handle to a pool of buffers. Clones refer to the same pool.
///
/// ```
/// use ringpass_memory::{Mempool, MempoolConfig};
///
/// let pool = Mempool::new(&MempoolConfig { buffers: 1, ..Default::default() })?;
/// let packet = pool.alloc().expect("a free buffer");
/// assert!(pool.alloc().is_none() && pool.exhausted() == 1);
/// drop(packet);
/// assert!(pool.alloc().is_some());
/// # Ok::<(), ringpass_memory::Error>(())
/// ```
///
/// The memory lives until every handle is dropped and every buffer has come back.
#[derive(Debug)]
pub struct Mempool(pub(crate) NonNull<Shared>);

// SAFETY: `Shared` consists of atomics, the memory, the slot table and the metadata table. The slot table's raw
// pointers lead into the memory, and an entry is written only by the lender of its buffer while nobody else has
// it. An entry of the metadata table is accessed only by the packet's owner.
unsafe impl Send for Mempool {}
// SAFETY: through shared handles, threads access only atomics, the memory by raw pointers, slots that nobody writes
// meanwhile, and the metadata of packets that they own.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Allocates the memory and fills the depot.
    pub fn new(config: &MempoolConfig) -> Result<Self, Error> {
        if !(64..=32_000).contains(&config.size) || !(1..=1 << 24).contains(&config.buffers) {
            return Err(Error::Config("a pool has 1 to 16777216 buffers, of 64 to 32000 bytes each"));
        }
        // The stride is an odd number of cache lines, so that the headers of neighbouring buffers fall into
        // different sets of the cache.
        let stride = match config.size {
            PAGE_BUFFER_SIZE => PageSize::Ordinary.bytes(),
            size => ((size + HEADROOM).div_ceil(64) | 1) * 64,
        };
        // Neighbouring huge pages need not be contiguous in physical memory, so no buffer straddles two of them.
        let page = match config.region.pages {
            PageSize::Ordinary => config.buffers * stride,
            PageSize::Huge2M | PageSize::Huge1G => PageSize::Huge2M.bytes(),
        };
        let per_page = page / stride;
        let region = DmaRegion::new(config.buffers.div_ceil(per_page) * page, &config.region)?;
        let slot = |index, pool| {
            let offset = index / per_page * page + index % per_page * stride + HEADROOM;
            let (data, iova) = (region.at(offset), region.iova(offset));
            Slot { data, iova, pool, index: index as u32, size: config.size as u16, headroom: HEADROOM as u16 }
        };
        let pool = Self::of(Memory::Own(region.clone()), config.buffers, slot);
        pool.shared().depot.fill();
        Ok(pool)
    }

    /// Creates a pool of slots, each made by `slot` from its index and the pool. All slots are outside the
    /// depot.
    pub(crate) fn of(memory: Memory, slots: usize, slot: impl Fn(usize, NonNull<Shared>) -> Slot) -> Self {
        Self(Shared::allocate(memory, slots, slot))
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: this handle is a reference (see `Shared`), so the pool is alive as long as `self`.
        unsafe { self.0.as_ref() }
    }

    /// Largest frame that a buffer takes behind the headroom, in bytes. Lent buffers have a size each.
    pub fn buffer_size(&self) -> usize {
        // SAFETY: the slot lies in the pool, which `self` keeps alive. Slots are written in pools of lent
        // buffers only, and handles of those do not leave `LentPool`, which does not call this.
        unsafe { slot_ref(&self.shared().depot.slots[0]).as_ref() }.size as usize
    }

    /// Returns the pool's memory, to be mapped for a device.
    pub fn region(&self) -> &Arc<DmaRegion> {
        match &self.shared().memory {
            Memory::Own(region) => region,
            Memory::Lent(_) => unreachable!("a `LentPool` does not pass on its handle"),
        }
    }
}

impl Clone for Mempool {
    fn clone(&self) -> Self {
        self.shared().references.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        // SAFETY: a handle counts as one reference, which this one gives up as it is dropped.
        unsafe { release(self.0, 1) };
    }
}
