//! Arrays that a device and a driver share.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::{DmaRegion, Error};

/// Types that a device and a driver may access concurrently: made of atomics only, valid for any bit pattern.
///
/// # Safety
/// The type consists of atomic integers without padding.
pub unsafe trait Atomics: Sync {}

// SAFETY: an array of two atomic integers of the same size has no padding.
unsafe impl Atomics for [AtomicU64; 2] {}
// SAFETY: an atomic integer has no padding.
unsafe impl Atomics for AtomicU16 {}
// SAFETY: an atomic integer has no padding.
unsafe impl Atomics for AtomicU32 {}
// SAFETY: an atomic integer has no padding.
unsafe impl Atomics for AtomicU64 {}

/// A slice of atomics in a DMA region, such as a descriptor ring. Keeps the region alive.
pub struct DmaArray<T: Atomics> {
    items: NonNull<[T]>,
    iova: u64,
    region: Arc<DmaRegion>,
}

// SAFETY: `T` consists of atomics (by `Atomics`), which may be accessed and moved to from any thread; the
// region is `Send` and `Sync`.
unsafe impl<T: Atomics> Send for DmaArray<T> {}
// SAFETY: `T` consists of atomics (by `Atomics`), which any number of threads may access; the region is `Send`
// and `Sync`.
unsafe impl<T: Atomics> Sync for DmaArray<T> {}

impl<T: Atomics> DmaArray<T> {
    /// Creates an array of `len` items that starts at `offset` in the region.
    ///
    /// # Errors
    /// If the array is empty, is not aligned for `T`, leaves the region or, with physical addresses, crosses a
    /// page: the device must see it as contiguous.
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

    /// Returns the address of the first item on the device's side.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Keeps the region mapped for the life of the process, because a device may still use it.
    pub fn leak(&self) {
        std::mem::forget(self.region.clone());
    }
}

impl<T: Atomics> std::ops::Deref for DmaArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` checked range and alignment, and `region` keeps the memory mapped as long as `self`. By
        // `Atomics`, `T` is valid for any bits and may change behind a shared reference.
        unsafe { self.items.as_ref() }
    }
}
