//! Arrays that a device and a driver share.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::{DmaRegion, Error};

/// Types that a device and a driver may access at the same time: made of atomics only, valid for any bits.
///
/// # Safety
/// The type consists of atomic integers without padding.
pub unsafe trait Atomics: Sync {}

// SAFETY: an array of two atomics has no padding.
unsafe impl Atomics for [AtomicU64; 2] {}
// SAFETY: an atomic integer.
unsafe impl Atomics for AtomicU32 {}

/// A slice of atomics in a region, such as a descriptor ring. Keeps the region.
pub struct DmaArray<T: Atomics> {
    items: NonNull<[T]>,
    iova: u64,
    region: Arc<DmaRegion>,
}

// SAFETY: `T` is made of atomics, which any thread may use; the region is `Send` and `Sync`.
unsafe impl<T: Atomics> Send for DmaArray<T> {}
// SAFETY: as above.
unsafe impl<T: Atomics> Sync for DmaArray<T> {}

impl<T: Atomics> DmaArray<T> {
    /// `len` items from `offset` of the region, which must be aligned for `T` and, with physical addresses, inside one
    /// page, so that the device sees them contiguous.
    pub fn new(region: &Arc<DmaRegion>, offset: usize, len: usize) -> Result<Self, Error> {
        let end = len.checked_mul(size_of::<T>()).and_then(|bytes| offset.checked_add(bytes));
        let page = region.page();
        let inside = |end: usize| offset < end && end <= region.len() && offset / page == (end - 1) / page;
        if !end.is_some_and(inside) || !region.at(offset).cast::<T>().is_aligned() {
            return Err(Error::Config("an array outside its DMA region or across its pages, or unaligned"));
        }
        let first = NonNull::new(region.at(offset).cast()).expect("a mapping is not at address 0");
        let items = NonNull::slice_from_raw_parts(first, len);
        Ok(Self { items, iova: region.iova(offset), region: region.clone() })
    }

    /// Where the device finds the first item.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Keeps the region for ever, because a device may still use it.
    pub fn leak(&self) {
        std::mem::forget(self.region.clone());
    }
}

impl<T: Atomics> std::ops::Deref for DmaArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` checked range and alignment; the region lives as long as `self`; `T` is valid for any bits and
        // may change under a shared reference.
        unsafe { self.items.as_ref() }
    }
}
