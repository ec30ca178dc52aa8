//! Arrays of atomics in memory that is shared with a guest: the parts of a ring.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Atomics, Error, ForeignMemory};

use super::GuestMemory;

/// Items that the guest may change at any time. Keeps the memory.
pub(super) struct Cells<T: Atomics, M = GuestMemory> {
    items: NonNull<[T]>,
    /// What makes any number one of an item: the length less one if that is a power of two, else 0.
    mask: usize,
    _memory: Arc<M>,
}

// SAFETY: `T` is made of atomics, which any thread may use; the memory is `Send` and `Sync`.
unsafe impl<T: Atomics, M: Send + Sync> Send for Cells<T, M> {}

impl<T: Atomics> Cells<T> {
    /// `len` items at an address of the front-end's, which must be a multiple of `align`.
    pub(super) fn new(memory: &Arc<GuestMemory>, user: u64, len: usize, align: usize) -> Result<Self, Error> {
        let start = memory.user(user, (len * size_of::<T>()) as u64);
        let start = start.ok_or(Error::Config("a ring that does not lie in one region of the guest's memory"))?.cast();
        if !(start.addr().get() | user as usize).is_multiple_of(align.max(align_of::<T>())) {
            return Err(Error::Config("a ring that is not aligned"));
        }
        Ok(Self::keeping(memory, start, len))
    }
}

impl<T: Atomics> Cells<T, ForeignMemory> {
    /// As many items as there are in `bytes` from an offset of the memory on.
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

impl<T: Atomics, M> Cells<T, M> {
    /// Items that lie in the memory, aligned. There are some.
    fn keeping(memory: &Arc<M>, start: NonNull<T>, len: usize) -> Self {
        assert!(len > 0);
        let mask = if len.is_power_of_two() { len - 1 } else { 0 };
        Self { items: NonNull::slice_from_raw_parts(start, len), mask, _memory: memory.clone() }
    }

    /// An item by a counter that goes round and round, of an array whose length is a power of two.
    #[inline(always)]
    pub(super) fn at(&self, counter: u16) -> &T {
        // SAFETY: below the length, which is not 0 (`keeping`); else as `deref`.
        unsafe { self.items.cast::<T>().add(usize::from(counter) & self.mask).as_ref() }
    }
}

impl<T: Atomics, M> Deref for Cells<T, M> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: range and alignment were checked; the memory lives as long as `self`; `T` is valid for any bits and
        // may change under a shared reference.
        unsafe { self.items.as_ref() }
    }
}
