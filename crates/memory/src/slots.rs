//! What pools of all kinds have in common: how slots are kept, and what memory their buffers lie in.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::pool::{Slot, SlotRef};
use crate::{DmaRegion, ForeignMemory};

pub(crate) type SlotCell = UnsafeCell<Slot>;

/// The slot in a cell.
pub(crate) fn slot_ref(cell: &SlotCell) -> SlotRef {
    NonNull::new(cell.get()).expect("a reference is not null")
}

/// What a pool's buffers lie in.
pub(crate) enum Memory {
    Own(Arc<DmaRegion>),
    /// Kept as long as a buffer is lent.
    Lent(#[expect(dead_code, reason = "kept mapped")] Box<[Arc<ForeignMemory>]>),
}

impl Memory {
    pub(crate) fn region(&self) -> &Arc<DmaRegion> {
        match self {
            Self::Own(region) => region,
            Self::Lent(_) => panic!("lent buffers have no region"),
        }
    }
}
