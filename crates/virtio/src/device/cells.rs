//! Arrays of atomics in a guest's memory: the parts of a ring.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Atomics, Error};

use super::GuestMemory;

/// Items that the guest may change at any time. Keeps the memory.
pub(super) struct Cells<T: Atomics> {
    items: NonNull<[T]>,
    /// What makes any number one of an item: the length less one if that is a power of two, else 0.
    mask: usize,
    _memory: Arc<GuestMemory>,
}

// SAFETY: `T` is made of atomics, which any thread may use; the memory is `Send` and `Sync`.
unsafe impl<T: Atomics> Send for Cells<T> {}

impl<T: Atomics> Cells<T> {
    /// `len` items at an address of the front-end's, which must be a multiple of `align`.
    pub(super) fn new(memory: &Arc<GuestMemory>, user: u64, len: usize, align: usize) -> Result<Self, Error> {
        let start = memory.user(user, (len * size_of::<T>()) as u64);
        let start = start.ok_or(Error::Config("a ring that does not lie in one region of the guest's memory"))?.cast();
        if !(start.addr().get() | user as usize).is_multiple_of(align.max(align_of::<T>())) {
            return Err(Error::Config("a ring that is not aligned"));
        }
        let mask = if len.is_power_of_two() { len - 1 } else { 0 };
        Ok(Self { items: NonNull::slice_from_raw_parts(start, len), mask, _memory: memory.clone() })
    }

    /// An item by a counter that goes round and round, of an array whose length is a power of two.
    #[inline(always)]
    pub(super) fn at(&self, counter: u16) -> &T {
        // SAFETY: below the length, which is not 0; else as `deref`.
        unsafe { self.items.cast::<T>().add(usize::from(counter) & self.mask).as_ref() }
    }
}

impl<T: Atomics> Deref for Cells<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` checked range and alignment; the memory lives as long as `self`; `T` is valid for any bits and
        // may change under a shared reference.
        unsafe { self.items.as_ref() }
    }
}
