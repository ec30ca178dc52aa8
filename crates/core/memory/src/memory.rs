//! Memory that several processes share, accessed as bytes or as items of known types.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Atomics, DmaRegion, ForeignMemory, RawBytes, copy};

/// Mapped memory that this process or another one has allocated, or a part of it. Keeps it mapped. Others may write
/// it at any time, so it is accessed by copies and by atomics only.
#[derive(Clone)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    mapping: Mapping,
}

/// The owner that keeps memory mapped.
#[derive(Clone)]
enum Mapping {
    Own(Arc<DmaRegion>),
    Theirs(Arc<ForeignMemory>),
    /// Nobody: the caller of [`Memory::borrowed`] answers for it.
    Borrowed,
}

impl Mapping {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own(a), Self::Own(b)) => Arc::ptr_eq(a, b),
            (Self::Theirs(a), Self::Theirs(b)) => Arc::ptr_eq(a, b),
            (Self::Borrowed, Self::Borrowed) => true,
            _ => false,
        }
    }
}

// SAFETY: `start` points into memory that `mapping` keeps mapped, or the caller of `borrowed`, and a mapping is valid in every
// thread.
unsafe impl Send for Memory {}
// SAFETY: shared access hands out atomics (`Cells`) and raw pointers only; the mapping is valid in every thread
// and kept by `mapping`, or by the caller of `borrowed`.
unsafe impl Sync for Memory {}

impl From<Arc<DmaRegion>> for Memory {
    fn from(region: Arc<DmaRegion>) -> Self {
        let start = NonNull::new(region.at(0)).expect("a mapping is not at address 0");
        Self { start, len: region.len(), mapping: Mapping::Own(region) }
    }
}

impl From<Arc<ForeignMemory>> for Memory {
    fn from(memory: Arc<ForeignMemory>) -> Self {
        let start = NonNull::new(memory.as_ptr()).expect("a mapping is not at address 0");
        Self { start, len: memory.len(), mapping: Mapping::Theirs(memory) }
    }
}

impl Memory {
    /// Returns the first `len` bytes of a region, or all of it if it is shorter. Bytes after them cannot be
    /// reached through the result.
    pub fn first(region: &Arc<DmaRegion>, len: usize) -> Self {
        let all = Self::from(region.clone());
        Self { len: len.min(all.len), ..all }
    }

    /// Returns memory that somebody else keeps mapped, such as that of the program in which this library runs.
    ///
    /// # Safety
    /// `len` bytes from `start` on stay mapped, for reading and writing, as long as the result and its parts are used. There is no
    /// reference into them, except to atomics.
    pub unsafe fn borrowed(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, mapping: Mapping::Borrowed }
    }

    /// Returns the `len` bytes from `offset` on; `None` if they are not all inside.
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        Some(Self { start: self.bytes(offset, len)?, len, mapping: self.mapping.clone() })
    }

    /// Appends memory that follows directly in the same mapping. Returns `false` if it does not follow.
    pub fn append(&mut self, next: &Self) -> bool {
        let follows =
            self.mapping.is(&next.mapping) && self.start.as_ptr().wrapping_add(self.len) == next.start.as_ptr();
        self.len += if follows { next.len } else { 0 };
        follows
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether an access found that another process had truncated the file. Since then reads return zeros.
    pub fn lost(&self) -> bool {
        matches!(&self.mapping, Mapping::Theirs(memory) if memory.lost())
    }

    /// Returns the address of `len` bytes from `offset` on; `None` if they are not all inside. Other processes
    /// may write them at any time.
    #[inline]
    pub fn bytes(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: `inside` implies `offset <= self.len`, and the mapping has `self.len` bytes from `start`, so
        // the result is in it or one past its end.
        inside.then(|| unsafe { self.start.add(offset) })
    }

    /// Returns the address of the byte at `offset`.
    ///
    /// # Safety
    /// `offset` is at most the length.
    #[inline]
    pub(crate) unsafe fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset <= self.len);
        // SAFETY: the mapping has `self.len` bytes from `start`, and `offset` does not exceed them, by this
        // function's contract.
        unsafe { self.start.add(offset) }
    }

    /// Returns `len` bytes from `offset` on, for reading; `None` if they are not all inside.
    #[inline]
    pub fn raw(&self, offset: usize, len: usize) -> Option<RawBytes<'_>> {
        // SAFETY: `bytes` checked that the bytes lie in the mapping, which exists as long as `self`. A mapping is
        // initialised: it is zeroed or the content of a file. Nobody has a `&mut` reference into it.
        self.bytes(offset, len).map(|start| unsafe { RawBytes::new(start.as_ptr(), len) })
    }

    /// Returns the item at `offset`; `None` if it is not inside, or not aligned.
    #[inline]
    pub fn cell<T: Atomics>(&self, offset: usize) -> Option<&T> {
        let cell = self.bytes(offset, size_of::<T>())?.cast::<T>();
        if !cell.is_aligned() {
            return None;
        }
        // SAFETY: `bytes` checked that the item lies in the mapping, which exists as long as `self`; the alignment
        // was checked above. `T: Atomics` is valid for any bits and consists of atomics, so others may change it
        // behind a shared reference.
        Some(unsafe { cell.as_ref() })
    }

    /// Copies the bytes from `offset` on to `to`. Returns `false`, with nothing copied, if they are not all
    /// inside.
    #[inline]
    #[must_use]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.bytes(offset, to.len()) else { return false };
        // SAFETY: `bytes` checked that `to.len()` bytes lie in the mapping, which exists as long as `self`.
        // `to` is writable and exclusively borrowed, so it does not overlap the mapping: nobody has a `&mut`
        // reference into that.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes to the memory from `offset` on. Returns `false`, with nothing copied, if they do not fit.
    #[inline]
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.bytes(offset, from.len()) else { return false };
        // SAFETY: `bytes` checked that `from.len()` bytes lie in the mapping, which exists as long as `self`
        // and to which nobody has a `&mut` reference. `from` is a shared borrow, so it is readable and nobody
        // has a `&mut` reference to it either.
        unsafe { copy(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// Returns `len` items from `offset` on; `None` if they are not all inside, or not aligned.
    pub fn cells<T: Atomics>(&self, offset: usize, len: usize) -> Option<Cells<T>> {
        let start = self.bytes(offset, len.checked_mul(size_of::<T>())?)?.cast::<T>();
        start.is_aligned().then(|| Cells { items: NonNull::slice_from_raw_parts(start, len), _memory: self.clone() })
    }
}

/// Items in shared memory, with the mapping that they lie in.
pub struct Cells<T: Atomics> {
    items: NonNull<[T]>,
    _memory: Memory,
}

// SAFETY: only `&[T]` is handed out, and `T: Atomics` implies `T: Sync`. `items` points into memory that
// stays mapped as long as `_memory` is used, and `Memory` is `Send`.
unsafe impl<T: Atomics> Send for Cells<T> {}
// SAFETY: only `&[T]` is handed out, and `T: Atomics` implies `T: Sync`; `Memory`, with which the bytes
// stay mapped, is `Sync`.
unsafe impl<T: Atomics> Sync for Cells<T> {}

impl<T: Atomics> Deref for Cells<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `Memory::cells` checked the range and the alignment, and the bytes stay mapped as long as
        // `_memory` is used. `T: Atomics` is valid for any bits and consists of atomics, so others may change it behind a shared
        // reference.
        unsafe { self.items.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::RegionConfig;

    #[test]
    fn all_lengths_are_copied_and_nothing_beside() {
        let memory: Memory = DmaRegion::new(4096, &RegionConfig::default()).unwrap().into();
        let from: Vec<u8> = (0..400).map(|i| i as u8 ^ 0x5a).collect();
        for len in 0..300 {
            assert!(memory.write(0, &[0; 400]) && memory.write(5, &from[3..3 + len]));
            let mut to = [0xee; 400];
            assert!(memory.read(4, &mut to[1..len + 3]));
            assert_eq!(to[2..2 + len], from[3..3 + len]);
            assert!((to[0], to[1], to[len + 2]) == (0xee, 0, 0) && to[len + 3..].iter().all(|&byte| byte == 0xee));
        }
    }

    #[test]
    fn what_is_outside_is_refused() {
        let memory: Memory = DmaRegion::new(4096, &RegionConfig::default()).unwrap().into();
        assert!(memory.write(4095, &[1]) && !memory.write(4095, &[1, 2]) && !memory.write(usize::MAX, &[1]));
        let mut out = [7; 2];
        assert!(!memory.read(4095, &mut out) && out == [7; 2]);
        assert!(memory.read(4094, &mut out) && out == [0, 1]);
    }

    #[test]
    fn parts_that_follow_each_other_are_joined() {
        let region = DmaRegion::new(4096, &RegionConfig::default()).unwrap();
        let memory = Memory::from(region);
        let part = |offset, len| memory.part(offset, len).unwrap();
        let mut front = part(0, 64);
        assert!(!front.append(&part(65, 64)) && !front.append(&part(0, 64)) && front.append(&part(64, 64)));
        let other = DmaRegion::new(4096, &RegionConfig::default()).unwrap();
        assert!(!front.append(&Memory::from(other).part(128, 64).unwrap()));
        assert_eq!(front.len(), 128);
        assert!(front.raw(64, 64).is_some() && front.raw(64, 65).is_none() && memory.part(4090, 7).is_none());
        assert!(front.cell::<AtomicU32>(124).is_some());
        assert!(front.cell::<AtomicU32>(125).is_none() && front.cell::<AtomicU32>(122).is_none());
    }
}
