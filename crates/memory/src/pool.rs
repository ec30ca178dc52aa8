//! Mempools: buffers of one size, cut from a region, that come back from wherever they are freed.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::cache::Cache;
use crate::depot::{Depot, MAGAZINE};
use crate::flags::Beside;
use crate::slots::{Memory, slot_ref};
use crate::{Addressing, DmaRegion, Error, PageSize, RegionConfig};

/// Bytes kept free in front of a received frame, for headers to be put before it.
pub const HEADROOM: usize = 128;

/// What a [`Mempool`] is made of.
#[derive(Clone, Debug)]
pub struct MempoolConfig {
    /// How many buffers; 1 to 16,777,216.
    pub buffers: usize,
    /// Bytes of frame that a buffer takes, behind the headroom; 64 to 32,000.
    pub size: usize,
    /// The memory beneath. Its length is derived.
    pub region: RegionConfig,
}

impl Default for MempoolConfig {
    fn default() -> Self {
        Self { buffers: 4096, size: 2048, region: RegionConfig::default() }
    }
}

/// One buffer: where it lies, and whose it is. Never written after the pool is made, but in pools of lent buffers: before
/// one is lent.
pub(crate) struct Slot {
    /// Behind the headroom, where a device writes a frame.
    pub(crate) data: *mut u8,
    pub(crate) iova: u64,
    pub(crate) pool: NonNull<Shared>,
    pub(crate) index: u32,
    /// Bytes from `data`, and in front of it.
    pub(crate) size: u16,
    pub(crate) headroom: u16,
}

/// A slot, wherever it is just now. Arrays of them are filled with dangling ones, which are never looked at.
pub(crate) type SlotRef = NonNull<Slot>;

/// What handles, caches and packets of one pool share.
///
/// `references` counts the handles plus every buffer that is outside the depot. It moves with each exchange with the
/// depot, not with each packet, and the last one out frees the pool: a packet may outlive every handle.
pub(crate) struct Shared {
    pub(crate) depot: Depot,
    pub(crate) references: AtomicUsize,
    pub(crate) exhausted: AtomicU64,
    /// By slot; whoever owns the packet owns its entry.
    pub(crate) beside: Box<[UnsafeCell<Beside>]>,
    pub(crate) memory: Memory,
}

impl Shared {
    /// Moves slots from the depot to `out` and counts them as outside.
    pub(crate) fn take(&self, out: &mut [SlotRef; MAGAZINE]) -> usize {
        let taken = self.depot.take(out);
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
pub(crate) unsafe fn release(pool: NonNull<Shared>, count: usize) {
    // SAFETY: the references about to be given up keep it alive. Release and Acquire as in `Arc`: all uses of the pool
    // happen before it is freed.
    if unsafe { pool.as_ref() }.references.fetch_sub(count, Ordering::AcqRel) == count {
        // SAFETY: made from a `Box` in `Mempool::of`, and nobody else refers to it.
        drop(unsafe { Box::from_raw(pool.as_ptr()) });
    }
}

/// A handle to a pool of buffers. Clones refer to the same pool.
///
/// The memory lives until every handle is dropped and every buffer has come back.
#[derive(Debug)]
pub struct Mempool(pub(crate) NonNull<Shared>);

// SAFETY: `Shared` is made of atomics, the memory, a slot table whose raw pointers are into that, an entry of which is
// written by the lender of its buffer only, while nobody else has it, and what lies beside packets, an entry of which only
// the packet's owner reaches.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Allocates the memory and fills the depot.
    pub fn new(config: &MempoolConfig) -> Result<Self, Error> {
        if !(64..=32_000).contains(&config.size) || !(1..=1 << 24).contains(&config.buffers) {
            return Err(Error::Config("a pool has 1 to 16777216 buffers, of 64 to 32000 bytes each"));
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
        let slot = |index, pool| {
            let offset = index / per_page * page + index % per_page * stride + HEADROOM;
            let (data, iova) = (region.at(offset), region.iova(offset));
            Slot { data, iova, pool, index: index as u32, size: config.size as u16, headroom: HEADROOM as u16 }
        };
        let pool = Self::of(Memory::Own(region.clone()), config.buffers, slot);
        pool.shared().depot.fill();
        Ok(pool)
    }

    /// A pool of these slots, which are told where they belong. None of them is in the depot yet.
    pub(crate) fn of(memory: Memory, slots: usize, slot: impl Fn(usize, NonNull<Shared>) -> Slot) -> Self {
        let pool = NonNull::from(Box::leak(Box::<Shared>::new_uninit())).cast();
        let depot = Depot::new((0..slots).map(|index| slot(index, pool).into()).collect());
        let beside = (0..slots).map(|_| UnsafeCell::default()).collect();
        // SAFETY: allocated just now, and nobody else knows it yet.
        unsafe { pool.write(Shared { depot, references: 1.into(), exhausted: 0.into(), beside, memory }) };
        Self(pool)
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: this handle is a reference (see `Shared`).
        unsafe { self.0.as_ref() }
    }

    /// A per-queue stack of free buffers.
    pub fn cache(&self) -> Cache {
        Cache::new(self.clone())
    }

    /// Bytes of frame that a buffer takes behind the headroom. Of lent buffers, each has its own.
    pub fn buffer_size(&self) -> usize {
        // SAFETY: see `Slot`.
        unsafe { slot_ref(&self.shared().depot.slots[0]).as_ref() }.size as usize
    }

    /// The memory beneath, to be mapped for a device.
    ///
    /// # Panics
    /// If the buffers are lent.
    pub fn region(&self) -> &Arc<DmaRegion> {
        self.shared().memory.region()
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
