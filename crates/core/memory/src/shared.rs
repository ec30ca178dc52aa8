//! The state that everything of one pool shares: handles, caches, packets.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::DmaRegion;
use crate::depot::{Depot, MAGAZINE, Slot, SlotRef};

/// Memory that a pool's buffers lie in.
pub(crate) enum Memory {
    Own(Arc<DmaRegion>),
    /// Memory of somebody else, kept mapped as long as one of its buffers is lent.
    Lent(#[expect(dead_code, reason = "kept mapped")] Box<dyn Send + Sync>),
}

/// State of a pool whose packets have metadata of the type `M`.
///
/// `references` counts the handles plus every buffer outside the depot. It changes with each exchange with the
/// depot, not with each packet. The pool is freed when it reaches 0, so a packet may outlive every handle.
pub(crate) struct Shared<M> {
    pub(crate) depot: Depot<Self>,
    pub(crate) references: AtomicUsize,
    pub(crate) exhausted: AtomicU64,
    /// Metadata by slot index. The owner of the packet owns its entry.
    pub(crate) metadata: Box<[UnsafeCell<M>]>,
    pub(crate) memory: Memory,
}

impl<M: Default> Shared<M> {
    /// Allocates a pool with one reference, of slots that are each made by `slot` from its index and the pool. All
    /// slots are outside the depot. It is freed by [`release`].
    pub(crate) fn allocate(
        memory: Memory,
        slots: usize,
        slot: impl Fn(usize, NonNull<Self>) -> Slot<Self>,
    ) -> NonNull<Self> {
        let pool = NonNull::from(Box::leak(Box::<Self>::new_uninit())).cast();
        let depot = Depot::new((0..slots).map(|index| slot(index, pool).into()).collect());
        let metadata = (0..slots).map(|_| UnsafeCell::default()).collect();
        // SAFETY: `pool` was allocated by the first line with the layout of `Self`, and no other thread knows it yet.
        unsafe { pool.write(Self { depot, references: 1.into(), exhausted: 0.into(), metadata, memory }) };
        pool
    }
}

impl<M> Shared<M> {
    /// Moves slots from the depot to `out`, counts them as outside, and returns their number.
    pub(crate) fn take(&self, out: &mut [SlotRef<Self>; MAGAZINE]) -> usize {
        let taken = self.depot.take(out);
        self.references.fetch_add(taken, Ordering::Relaxed);
        if taken == 0 {
            self.exhausted.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

/// Returns slots to their depot, and frees the pool if these were its last references.
///
/// # Safety
/// The slots belong to this pool and are outside its depot, and the caller gives them up.
pub(crate) unsafe fn put<M>(pool: NonNull<Shared<M>>, slots: &[SlotRef<Shared<M>>]) {
    // SAFETY: the slots are outside the depot by this function's contract. Each counts as a reference, so the
    // pool is alive until `release`.
    unsafe { pool.as_ref() }.depot.put(slots);
    // SAFETY: each of the `slots.len()` slots was a reference, and the caller gave it up by this function's
    // contract.
    unsafe { release(pool, slots.len()) };
}

/// Drops `count` references, and frees the pool if these were the last.
///
/// # Safety
/// The caller holds `count` references and gives them up.
pub(crate) unsafe fn release<M>(pool: NonNull<Shared<M>>, count: usize) {
    // SAFETY: the references that are given up here keep the pool alive until the subtraction. Release and
    // Acquire as in `Arc`: all uses of the pool happen before it is freed.
    if unsafe { pool.as_ref() }.references.fetch_sub(count, Ordering::AcqRel) == count {
        // SAFETY: `Shared::allocate` allocated it as a `Box`. The count is 0 now, so nobody else refers to it.
        drop(unsafe { Box::from_raw(pool.as_ptr()) });
    }
}
