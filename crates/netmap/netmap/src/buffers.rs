//! The buffers of a region, as every process that has mapped it accesses them: copies in and out, by raw
//! pointers only.
//!
//! Other processes may write the buffers at any time; a copy then holds a mix of old and new bytes.

use std::ptr::NonNull;

use ringpass_memory::{Memory, RawBytes, copy};

use crate::layout::RESERVED_BUFFERS;
use crate::{Pools, Slot};

/// Buffers of one size in a [`Memory`].
///
/// A buffer belongs to whoever owns the slot that names it. Processes that ignore this change bytes and nothing
/// else, as no reference into a buffer is ever made.
#[derive(Clone)]
pub struct Buffers {
    memory: Memory,
    /// Start of buffer 0, which is reserved.
    start: NonNull<u8>,
    count: u32,
    stride: usize,
}

// SAFETY: `start` points into `memory`, which this struct keeps mapped and which is itself `Send`; a mapping is
// valid in every thread.
unsafe impl Send for Buffers {}
// SAFETY: shared access hands out raw pointers and makes copies by raw pointers only, so no reference can
// conflict with a write of another thread; `memory` is `Sync`.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// Returns the `count` buffers of `size` bytes each (64 to 65,536) that begin at offset `start` of the
    /// memory; `None` if they are not all inside, or if there are only reserved ones.
    pub fn new(memory: &Memory, start: usize, count: u32, size: u32) -> Option<Self> {
        let stride = size as usize;
        let start = memory.bytes(start, stride.checked_mul(count as usize)?)?;
        let (memory, right) = (memory.clone(), (64..=1 << 16).contains(&stride) && count > RESERVED_BUFFERS);
        right.then_some(Self { memory, start, count, stride })
    }

    /// Returns the buffers of a region with these pools.
    pub fn of(memory: &Memory, pools: &Pools) -> Option<Self> {
        Self::new(memory, pools.buffers_at(), pools.buffers, pools.buffer_size)
    }

    /// The memory that the buffers lie in.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Largest length in bytes that a slot can state for a buffer: at most 65,535.
    #[inline]
    pub fn size(&self) -> usize {
        self.stride.min(u16::MAX.into())
    }

    /// Whether `buffer` is a valid, unreserved index and `len` bytes fit into it.
    #[inline(always)]
    pub fn holds(&self, buffer: u32, len: usize) -> bool {
        buffer.wrapping_sub(RESERVED_BUFFERS) < self.count - RESERVED_BUFFERS && len <= self.stride
    }

    /// Returns the address of `len` bytes at `offset` of a buffer; `None` if the buffer does not exist or is
    /// too small.
    #[inline(always)]
    pub fn at(&self, buffer: u32, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let right = self.holds(buffer, len) && offset <= self.stride - len;
        // SAFETY: `new` checked that `count * stride` bytes from `start` lie in the memory. `holds` checked
        // `buffer < count`, and `offset + len <= stride`, so the result is inside those bytes or one past their
        // end.
        right.then(|| unsafe { self.start.add(buffer as usize * self.stride + offset) })
    }

    /// Copies bytes of a buffer to `out`. Returns `false` if the buffer does not exist or is too small.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, buffer: u32, offset: usize, out: &mut [u8]) -> bool {
        let from = self.raw(buffer, offset, out.len());
        if let Some(from) = from {
            from.read(0, out);
        }
        from.is_some()
    }

    /// Returns `len` bytes at `offset` of a buffer, to be copied; `None` if the buffer does not exist or is too
    /// small.
    #[inline(always)]
    pub fn raw(&self, buffer: u32, offset: usize, len: usize) -> Option<RawBytes<'_>> {
        // SAFETY: `at` checked that the `len` bytes lie in the memory, which stays mapped as long as `self` is
        // borrowed; mapped memory is always initialised. This crate makes no reference to buffers.
        self.at(buffer, offset, len).map(|start| unsafe { RawBytes::new(start.as_ptr(), len) })
    }

    /// Copies bytes to a buffer. Returns `false` if the buffer does not exist or is too small.
    #[inline(always)]
    #[must_use]
    pub fn put<'a>(&self, buffer: u32, offset: usize, bytes: impl Into<RawBytes<'a>>) -> bool {
        let bytes = bytes.into();
        let to = self.at(buffer, offset, bytes.len());
        if let Some(to) = to {
            // SAFETY: `at` checked that `bytes.len()` bytes lie in the memory, which stays mapped as long as
            // `self` is borrowed and to which only raw pointers exist. `bytes` is readable for its lifetime by
            // the contract of `RawBytes::new`.
            unsafe { copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        }
        to.is_some()
    }

    /// Returns the address and length of a slot's frame or fragment; `None` if the slot's buffer does not exist
    /// or is smaller than the slot's length.
    #[inline]
    pub fn bytes(&self, slot: Slot) -> Option<NonNull<[u8]>> {
        let start = self.at(slot.buffer, 0, slot.len.into())?;
        Some(NonNull::slice_from_raw_parts(start, slot.len.into()))
    }

    /// Reads the frame of a slot into the first bytes of `out`. Returns its length; `None` if the buffer does
    /// not exist, or if `out` or the buffer is too small.
    #[inline]
    pub fn read(&self, slot: Slot, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..slot.len.into())?;
        self.get(slot.buffer, 0, out).then_some(out.len())
    }

    /// Writes a frame into the buffer of a slot, whose length must be the frame's. Returns whether it was
    /// written: `false` if the lengths differ or the buffer does not exist.
    #[inline]
    #[must_use]
    pub fn write(&self, slot: Slot, frame: &[u8]) -> bool {
        frame.len() == usize::from(slot.len) && self.put(slot.buffer, 0, frame)
    }

    /// Copies the frame of a slot into the buffer of another slot, of the same or of another memory. Returns
    /// whether both buffers exist and are large enough.
    #[inline]
    #[must_use]
    pub fn copy(&self, from: Slot, others: &Self, to: Slot) -> bool {
        let (from, to) = (self.bytes(from), others.bytes(Slot { len: from.len, ..to }));
        let (Some(from), Some(to)) = (from, to) else { return false };
        // SAFETY: `bytes` checked that `from.len` bytes lie in either memory, and both memories stay mapped
        // while `self` and `others` are borrowed. Only raw pointers lead to them. `copy_to` permits overlap, in
        // case both slots name the same buffer.
        unsafe { from.cast::<u8>().copy_to(to.cast(), from.len()) };
        true
    }
}
