//! Arrays of atomics in memory that is shared with a guest: the parts of a ring.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Atomics, Error, ForeignMemory};

use super::GuestMemory;

/// An array that the guest may change at any time. Keeps the memory mapped.
pub(super) struct SharedArray<T: Atomics, M = GuestMemory> {
    items: NonNull<[T]>,
    /// Mask that turns any counter into a valid index: the length minus one if that is a power of two, else 0.
    mask: usize,
    _memory: Arc<M>,
}

// SAFETY: `items` points into memory that `_memory` keeps, and is not tied to a thread. `T` is made of atomics,
// which any thread may use, and `M` is `Send` and `Sync`.
unsafe impl<T: Atomics, M: Send + Sync> Send for SharedArray<T, M> {}

impl<T: Atomics> SharedArray<T> {
    /// Creates an array of `len` items at an address of the front-end, which must be a multiple of `align`.
    pub(super) fn new(memory: &Arc<GuestMemory>, user: u64, len: usize, align: usize) -> Result<Self, Error> {
        let start = memory.user(user, (len * size_of::<T>()) as u64);
        let start = start.ok_or(Error::Config("a ring that does not lie in one region of the guest's memory"))?.cast();
        if !(start.addr().get() | user as usize).is_multiple_of(align.max(align_of::<T>())) {
            return Err(Error::Config("a ring that is not aligned"));
        }
        Ok(Self::keeping(memory, start, len))
    }
}

impl<T: Atomics> SharedArray<T, ForeignMemory> {
    /// Creates an array of as many items as fit in `bytes`, from an offset of the memory on.
    pub(super) fn of(memory: &Arc<ForeignMemory>, offset: usize, bytes: usize) -> Result<Self, Error> {
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > memory.len()) || bytes < size_of::<T>() {
            return Err(Error::Config("an inflight region outside its memory"));
        }
        let start = NonNull::new(memory.as_ptr().wrapping_add(offset).cast::<T>()).expect("in a mapping");
        if !start.is_aligned() {
            return Err(Error::Config("an inflight region that is not aligned"));
        }
        Ok(Self::keeping(memory, start, bytes / size_of::<T>()))
    }
}

impl<T: Atomics, M> SharedArray<T, M> {
    /// Creates an array of items that were checked to be inside `memory` and aligned. `len` must not be 0.
    fn keeping(memory: &Arc<M>, start: NonNull<T>, len: usize) -> Self {
        assert!(len > 0);
        let mask = if len.is_power_of_two() { len - 1 } else { 0 };
        Self { items: NonNull::slice_from_raw_parts(start, len), mask, _memory: memory.clone() }
    }

    /// Returns the item at a counter that wraps, in an array whose length is a power of two.
    #[inline(always)]
    pub(super) fn at(&self, counter: u16) -> &T {
        // SAFETY: the index is at most `mask`, which is below the length: `keeping` sets it to the length minus
        // one or to 0, and asserts that the length is not 0. `new` or `of` checked range and alignment of the
        // items; the memory lives as long as `self`; `T` is valid for any bits and may change under a shared
        // reference.
        unsafe { self.items.cast::<T>().add(usize::from(counter) & self.mask).as_ref() }
    }
}

impl<T: Atomics, M> Deref for SharedArray<T, M> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` or `of` checked range and alignment of the items; the memory lives as long as `self`;
        // `T` is valid for any bits and may change under a shared reference.
        unsafe { self.items.as_ref() }
    }
}
