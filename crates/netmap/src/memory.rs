//! Memory that several processes share, in parts of known types.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Atomics, DmaRegion, ForeignMemory, copy};

use crate::layout::{Interface, RingHeader, RingOffset};

/// Mapped memory: made here, or by another process.
#[derive(Clone)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    _mapping: Mapping,
}

#[derive(Clone)]
enum Mapping {
    Own(#[expect(dead_code, reason = "kept mapped")] Arc<DmaRegion>),
    Theirs(#[expect(dead_code, reason = "kept mapped")] Arc<ForeignMemory>),
}

// SAFETY: the mapping may be used from any thread, and is kept.
unsafe impl Send for Memory {}
// SAFETY: as above; nothing but atomics and raw pointers is handed out.
unsafe impl Sync for Memory {}

impl From<Arc<DmaRegion>> for Memory {
    fn from(region: Arc<DmaRegion>) -> Self {
        let start = NonNull::new(region.at(0)).expect("a mapping is not at address 0");
        Self { start, len: region.len(), _mapping: Mapping::Own(region) }
    }
}

impl From<Arc<ForeignMemory>> for Memory {
    fn from(memory: Arc<ForeignMemory>) -> Self {
        let start = NonNull::new(memory.as_ptr()).expect("a mapping is not at address 0");
        Self { start, len: memory.len(), _mapping: Mapping::Theirs(memory) }
    }
}

impl Memory {
    /// The first bytes of a region, at most all of them: nothing behind them is reached by this.
    pub fn first(region: &Arc<DmaRegion>, len: usize) -> Self {
        let all = Self::from(region.clone());
        Self { len: len.min(all.len), ..all }
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes from an offset on, to be read or written; anybody may write them at the same time. `None` if they are not all
    /// inside.
    pub fn bytes(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: inside the mapping, or one past its end.
        inside.then(|| unsafe { self.start.add(offset) })
    }

    /// Copies the bytes from an offset on to `to`. `false`, and nothing copied, if they are not all inside.
    #[inline]
    #[must_use]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.bytes(offset, to.len()) else { return false };
        // SAFETY: as many bytes are mapped as long as `self` is; `to` is borrowed mutably, so it is no part of them, as
        // nobody has a reference into shared memory.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes to the memory from an offset on. `false`, and nothing copied, if there is no room.
    #[inline]
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.bytes(offset, from.len()) else { return false };
        // SAFETY: as in `read`, the other way round.
        unsafe { copy(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// `len` items from an offset on; `None` if they are not all inside, or not aligned.
    pub fn cells<T: Atomics>(&self, offset: usize, len: usize) -> Option<Cells<T>> {
        let start = self.bytes(offset, len.checked_mul(size_of::<T>())?)?.cast::<T>();
        start.is_aligned().then(|| Cells { items: NonNull::slice_from_raw_parts(start, len), _memory: self.clone() })
    }
}

/// Items in shared memory, which it keeps.
pub struct Cells<T: Atomics> {
    items: NonNull<[T]>,
    _memory: Memory,
}

// SAFETY: `T` is made of atomics, which any thread may use; the memory is `Send` and `Sync`.
unsafe impl<T: Atomics> Send for Cells<T> {}
// SAFETY: as above.
unsafe impl<T: Atomics> Sync for Cells<T> {}

impl<T: Atomics> Deref for Cells<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: range and alignment were checked, and the memory is kept; `T` is valid for any bits, and others may
        // change it under a shared reference.
        unsafe { self.items.as_ref() }
    }
}

// SAFETY: atomics, without padding, as the offsets in `layout` say: 16 + 10 * 4 bytes.
unsafe impl Atomics for Interface {}
// SAFETY: an atomic integer.
unsafe impl Atomics for RingOffset {}
// SAFETY: sixteen of them.
#[cfg(not(loom))]
unsafe impl Atomics for crate::csb::FromApplication {}
// SAFETY: likewise.
#[cfg(not(loom))]
unsafe impl Atomics for crate::csb::FromServer {}
// SAFETY: likewise, 256 bytes.
unsafe impl Atomics for RingHeader {}

#[cfg(test)]
mod tests {
    use ringpass_memory::{DmaRegion, RegionConfig};

    use super::*;

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
}
