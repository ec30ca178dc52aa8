//! Mempools: buffers of one size, cut from a region, that come back from wherever they are freed.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::cache::Cache;
use crate::depot::{Depot, MAGAZINE, Numbered};
use crate::region::{Addressing, DmaRegion, Error, PageSize, RegionConfig};
use crate::{Burst, Packet};

/// Bytes kept free in front of a received frame, for headers to be put before it.
pub const HEADROOM: usize = 128;

/// What a [`Mempool`] is made of.
#[derive(Clone, Debug)]
pub struct MempoolConfig {
    /// How many buffers; 1 to 16,777,216.
    pub buffers: usize,
    /// Bytes of frame that a buffer takes, behind the headroom; 64 to 60,000.
    pub size: usize,
    /// The memory beneath. Its length is derived.
    pub region: RegionConfig,
}

impl Default for MempoolConfig {
    fn default() -> Self {
        Self { buffers: 4096, size: 2048, region: RegionConfig::default() }
    }
}

/// One buffer: where it lies, and whose it is. Never written after the pool is made.
pub(crate) struct Slot {
    /// Behind the headroom, where a device writes a frame.
    pub(crate) data: *mut u8,
    pub(crate) iova: u64,
    pub(crate) pool: NonNull<Shared>,
    pub(crate) index: u32,
    /// Bytes from `data`.
    pub(crate) size: u32,
}

/// A slot, wherever it is just now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRef(pub(crate) NonNull<Slot>);

// SAFETY: slots are only read; who holds a reference answers for the buffer.
unsafe impl Send for SlotRef {}

impl SlotRef {
    /// Fills arrays; never looked at.
    pub(crate) const NONE: Self = Self(NonNull::dangling());
}

impl Numbered for SlotRef {
    fn number(self) -> u32 {
        // SAFETY: the depot asks for slots that were put into it, which belong to the pool that owns it.
        unsafe { self.0.as_ref() }.index
    }
}

/// What handles, caches and packets of one pool share.
///
/// `references` counts the handles plus every buffer that is outside the depot. It moves with each exchange with the
/// depot, not with each packet, and the last one out frees the pool: a packet may outlive every handle.
pub(crate) struct Shared {
    pub(crate) slots: Box<[Slot]>,
    depot: Depot<SlotRef>,
    references: AtomicUsize,
    exhausted: AtomicU64,
    region: Arc<DmaRegion>,
}

impl Shared {
    /// Moves slots from the depot to `out` and counts them as outside.
    pub(crate) fn take(&self, out: &mut [SlotRef; MAGAZINE]) -> usize {
        let taken = self.depot.take(out, |number| SlotRef(NonNull::from(&self.slots[number as usize])));
        self.references.fetch_add(taken, Ordering::Relaxed);
        if taken == 0 {
            self.exhausted.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

/// Gives slots back to their depot, and frees the pool with the last of its references.
///
/// # Safety
/// The slots belong to this pool, are outside the depot and are given up by the caller.
pub(crate) unsafe fn put(pool: NonNull<Shared>, slots: &[SlotRef]) {
    // SAFETY: each slot outside the depot counts as a reference, so the pool is alive until `release`.
    unsafe { pool.as_ref() }.depot.put(slots);
    // SAFETY: the caller gave up that many.
    unsafe { release(pool, slots.len()) };
}

/// # Safety
/// The caller holds `count` references and gives them up.
unsafe fn release(pool: NonNull<Shared>, count: usize) {
    // SAFETY: the references about to be given up keep it alive. Release and Acquire as in `Arc`: all uses of the pool
    // happen before it is freed.
    if unsafe { pool.as_ref() }.references.fetch_sub(count, Ordering::AcqRel) == count {
        // SAFETY: made by `Box::leak` in `Mempool::new`, and nobody else refers to it.
        drop(unsafe { Box::from_raw(pool.as_ptr()) });
    }
}

/// A handle to a pool of buffers. Clones refer to the same pool.
///
/// The memory lives until every handle is dropped and every buffer has come back.
pub struct Mempool(pub(crate) NonNull<Shared>);

// SAFETY: `Shared` is made of atomics, an `Arc` and a slot table that is never written after `new`; its raw pointers
// are into the region that it keeps.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Allocates the memory and fills the depot.
    pub fn new(config: &MempoolConfig) -> Result<Self, Error> {
        if !(64..=60_000).contains(&config.size) || !(1..=1 << 24).contains(&config.buffers) {
            return Err(Error::Config("a pool has 1 to 16777216 buffers, of 64 to 60000 bytes each"));
        }
        // An odd number of cache lines, so that the headers of neighbouring buffers fall into different cache sets.
        let stride = ((config.size + HEADROOM).div_ceil(64) | 1) * 64;
        // Huge pages need not be neighbours in physical memory, so a buffer does not straddle two of them.
        let page = match config.region.addressing {
            Addressing::Virtual => config.buffers * stride,
            Addressing::Physical => PageSize::Huge2M.bytes(),
        };
        let per_page = page / stride;
        let region = DmaRegion::new(config.buffers.div_ceil(per_page) * page, &config.region)?;
        let depot = Depot::new(config.buffers, SlotRef::NONE);
        let (references, exhausted) = (AtomicUsize::new(1), AtomicU64::new(0));
        let shared = Shared { slots: Box::default(), depot, references, exhausted, region: region.clone() };
        let mut pool = NonNull::from(Box::leak(Box::new(shared)));
        let slot = |index| {
            let offset = index / per_page * page + index % per_page * stride + HEADROOM;
            let (data, iova) = (region.at(offset), region.iova(offset));
            Slot { data, iova, pool, index: index as u32, size: config.size as u32 }
        };
        let slots = (0..config.buffers).map(slot).collect();
        // SAFETY: nobody else knows the pool yet.
        unsafe { pool.as_mut() }.slots = slots;
        let pool = Self(pool);
        let all: Vec<_> = pool.shared().slots.iter().map(|slot| SlotRef(slot.into())).collect();
        all.chunks(MAGAZINE).for_each(|some| pool.shared().depot.put(some));
        Ok(pool)
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: this handle is a reference (see `Shared`).
        unsafe { self.0.as_ref() }
    }

    /// A per-queue stack of free buffers.
    pub fn cache(&self) -> Cache {
        Cache::new(self.clone())
    }

    /// One empty packet; `None`, counted, when no buffer is left. Queues use a [`Cache`], which is faster.
    pub fn alloc(&self) -> Option<Packet> {
        let mut burst = Burst::new(1);
        self.cache().alloc(&mut burst);
        burst.pop()
    }

    /// Number of buffers, free or not.
    pub fn capacity(&self) -> usize {
        self.shared().slots.len()
    }

    /// Bytes of frame that a buffer takes behind the headroom.
    pub fn buffer_size(&self) -> usize {
        self.shared().slots[0].size as usize
    }

    /// Buffers outside the depot: in packets, rings and caches. Exact while no other thread uses the pool, where
    /// `handles` is the number of live handles and caches.
    pub fn outstanding(&self, handles: usize) -> usize {
        self.shared().references.load(Ordering::Acquire).saturating_sub(handles)
    }

    /// How often a buffer was asked for when none was left.
    pub fn exhausted(&self) -> u64 {
        self.shared().exhausted.load(Ordering::Relaxed)
    }

    /// The memory beneath, to be mapped for a device.
    pub fn region(&self) -> &Arc<DmaRegion> {
        &self.shared().region
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
        // SAFETY: this handle's own reference.
        unsafe { release(self.0, 1) };
    }
}

impl std::fmt::Debug for Mempool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mempool({} buffers of {} bytes)", self.capacity(), self.buffer_size())
    }
}
