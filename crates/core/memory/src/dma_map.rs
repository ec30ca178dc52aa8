//! The memory that a device may access: mapped memory by the device's addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::{Access, Atomics, ContiguousRange, DmaRegion, Memory, Packet, RawBytes, copy, prefetch};

/// Reason why a range of addresses was not mapped or unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DMA map of {len:#x} bytes at {iova:#x}: {reason}")]
pub struct DmaMapError {
    /// First address of the range.
    pub iova: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// The reason.
    pub reason: DmaMapFault,
}

/// The reason in a [`DmaMapError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaMapFault {
    /// The range is no range of addresses.
    #[error("it is empty, or ends behind the last address")]
    Range,
    /// A part of the range is mapped already.
    #[error("it overlaps another map; unmap that first")]
    Overlap,
    /// The map would have too many entries.
    #[error("there would be more than {} maps", DmaMap::MAX)]
    Full,
}

/// A range of a device's addresses (IOVA) that is contiguous in this process too, and not empty.
#[derive(Clone)]
struct Mapping {
    iova: u64,
    memory: Memory,
    access: Access,
}

impl Mapping {
    /// Returns the last address, which is inclusive so that a mapping may end at the top of the address space.
    fn last(&self) -> u64 {
        self.iova + (self.memory.len() as u64 - 1)
    }

    /// Returns the offset of `iova` in the memory if all of `len` bytes from there lie inside.
    #[inline]
    fn offset_of(&self, iova: u64, len: usize) -> Option<usize> {
        let offset = iova.wrapping_sub(self.iova) as usize;
        (offset < self.memory.len() && len <= self.memory.len() - offset).then_some(offset)
    }

    #[inline]
    fn allows(&self, access: Access) -> bool {
        access == Access::Read || self.access == access
    }

    /// Returns the part from address `first` to address `last`; `None` if it is empty or not all inside.
    fn part(&self, first: u64, last: u64) -> Option<Self> {
        let len = last.checked_sub(first)? as usize + 1;
        let memory = self.memory.part(first.checked_sub(self.iova)? as usize, len)?;
        Some(Self { iova: first, memory, access: self.access })
    }
}

/// An integer that device and driver access in a single atomic load or store.
pub trait Word: Sized {
    /// The atomic integer of this width.
    type Atomic: Atomics;

    /// Loads a value (Acquire).
    fn load(from: &Self::Atomic) -> Self;

    /// Stores a value (Release).
    fn store(self, to: &Self::Atomic);
}

macro_rules! words {
    ($($word:ty, $atomic:ty;)*) => {$(
        impl Word for $word {
            type Atomic = $atomic;

            #[inline]
            fn load(from: &$atomic) -> Self {
                from.load(Ordering::Acquire)
            }

            #[inline]
            fn store(self, to: &$atomic) {
                to.store(self, Ordering::Release);
            }
        }
    )*};
}

words! {
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

/// Indices of the mappings that a caller's last accesses hit, by the lower bits of the number of a huge page of 2 MiB: a
/// pool's buffers often lie in several such pages, each with a mapping of its own, and a ring has them in any order.
pub struct LookupHint([u16; Self::PLACES]);

impl Default for LookupHint {
    fn default() -> Self {
        Self([0; Self::PLACES])
    }
}

impl LookupHint {
    const PLACES: usize = 128;

    #[inline]
    fn place(iova: u64) -> usize {
        (iova >> 21) as usize % Self::PLACES
    }

    #[inline]
    fn get(&self, iova: u64) -> usize {
        self.0[Self::place(iova)].into()
    }

    /// Remembers a mapping below [`DmaMap::MAX`].
    fn set(&mut self, iova: u64, index: usize) {
        self.0[Self::place(iova)] = index as u16;
    }
}

/// The memory that a device may access: mappings sorted by IOVA, none overlapping, at most [`MAX`](Self::MAX). The
/// driver may be another process, which is not trusted: it may write the memory at any time and take it away.
#[derive(Default)]
pub struct DmaMap(Vec<Mapping>);

impl DmaMap {
    /// Most mappings at a time.
    pub const MAX: usize = 65535;

    /// Adds a region of this process. What was mapped before stays as it is, as when a region is mapped twice.
    pub fn add(&mut self, region: &Arc<DmaRegion>) -> Result<(), DmaMapError> {
        let memory = Memory::from(region.clone());
        for ContiguousRange { iova, offset, len } in region.contiguous_ranges() {
            let part = memory.part(offset, len).expect("a range of this region");
            match self.insert(iova, part, Access::ReadWrite) {
                Ok(()) | Err(DmaMapError { reason: DmaMapFault::Overlap, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Maps memory at `iova`.
    pub fn insert(&mut self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        let len = memory.len() as u64;
        let refused = |reason| DmaMapError { iova, len, reason };
        let last = len.checked_sub(1).and_then(|more| iova.checked_add(more)).ok_or(refused(DmaMapFault::Range))?;
        let at = self.first_from(iova);
        if self.0.get(at).is_some_and(|next| next.iova <= last) {
            return Err(refused(DmaMapFault::Overlap));
        }
        if self.0.len() >= Self::MAX {
            return Err(refused(DmaMapFault::Full));
        }
        self.0.insert(at, Mapping { iova, memory, access });
        Ok(())
    }

    /// Returns the index of the first mapping that ends at `iova` or after it.
    fn first_from(&self, iova: u64) -> usize {
        self.0.partition_point(|mapping| mapping.last() < iova)
    }

    /// Removes all mappings and parts of mappings in a range of addresses; a range that exceeds the address space
    /// ends with it. Fails, and removes nothing, if a hole in a mapping would make one more than there may be.
    pub fn remove(&mut self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        let Some(last) = len.checked_sub(1).map(|more| iova.saturating_add(more)) else { return Ok(()) };
        let from = self.first_from(iova);
        let to = from + self.0[from..].partition_point(|mapping| mapping.iova <= last);
        let Some(([first, ..], end)) = self.0.get(from..to).and_then(|touched| Some((touched, touched.last()?))) else {
            return Ok(());
        };
        // The first and the last mapping may reach beyond the range; these parts stay.
        let before = iova.checked_sub(1).and_then(|last| first.part(first.iova, last));
        let behind = last.checked_add(1).and_then(|next| end.part(next, end.last()));
        let stay = usize::from(before.is_some()) + usize::from(behind.is_some());
        if self.0.len() - (to - from) + stay > Self::MAX {
            return Err(DmaMapError { iova, len, reason: DmaMapFault::Full });
        }
        self.0.splice(from..to, before.into_iter().chain(behind));
        Ok(())
    }

    /// Removes all mappings.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the number of mappings.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the memory that has all of `len` bytes from `iova`, and their offset in it, if one mapping has them and
    /// allows the access.
    #[inline]
    pub fn find(&self, iova: u64, len: usize, access: Access, hint: &mut LookupHint) -> Option<(&Memory, usize)> {
        if let Some(mapping) = self.0.get(hint.get(iova))
            && let Some(offset) = mapping.offset_of(iova, len)
        {
            return mapping.allows(access).then_some((&mapping.memory, offset));
        }
        let (mapping, offset) = self.search(iova, len, hint)?;
        mapping.allows(access).then_some((&mapping.memory, offset))
    }

    /// Returns the address of `len` bytes, like [`find`](Self::find).
    #[inline]
    fn pointer(&self, iova: u64, len: usize, access: Access, hint: &mut LookupHint) -> Option<*mut u8> {
        let (memory, offset) = self.find(iova, len, access, hint)?;
        // SAFETY: `find` has checked that `offset + len` does not exceed the memory.
        Some(unsafe { memory.at(offset) }.as_ptr())
    }

    #[cold]
    fn search(&self, iova: u64, len: usize, hint: &mut LookupHint) -> Option<(&Mapping, usize)> {
        let i = self.first_from(iova);
        let mapping = self.0.get(i)?;
        let offset = mapping.offset_of(iova, len)?;
        hint.set(iova, i);
        Some((mapping, offset))
    }

    /// Returns the memory of a range that may span several mappings, in pieces; `None` if any byte is not
    /// accessible.
    pub fn pieces(&self, iova: u64, len: usize, access: Access) -> Option<Vec<Memory>> {
        let mut pieces = Vec::new();
        let mut iova = iova;
        let mut left = len;
        for mapping in &self.0[self.first_from(iova)..] {
            if left == 0 {
                break;
            }
            let offset = mapping.offset_of(iova, 1).filter(|_| mapping.allows(access))?;
            let here = left.min(mapping.memory.len() - offset);
            pieces.push(mapping.memory.part(offset, here)?);
            left -= here;
            // Nothing is mapped beyond the last address, so the search must not continue at 0.
            iova = if left > 0 { iova.checked_add(here as u64)? } else { iova };
        }
        (left == 0).then_some(pieces)
    }

    /// Reads memory into `out`; returns `false` and reads nothing if a byte is not mapped.
    #[inline]
    #[must_use]
    pub fn read(&self, iova: u64, out: &mut [u8], hint: &mut LookupHint) -> bool {
        let Some(from) = self.pointer(iova, out.len(), Access::Read, hint) else { return self.read_pieces(iova, out) };
        // SAFETY: `pointer` checked that all bytes are in a mapping, which lives as long as `self` and to which nobody
        // has a `&mut` reference. `out` is borrowed exclusively, so it is outside of every mapping.
        unsafe { copy(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Reads memory into all of a packet's frame; returns `false` if a byte is not mapped (the frame is then
    /// zeros).
    #[inline]
    #[must_use]
    pub fn read_packet(&self, iova: u64, packet: &mut Packet, hint: &mut LookupHint) -> bool {
        let Some(from) = self.pointer(iova, packet.len(), Access::Read, hint) else {
            let mut bytes = vec![0; packet.len()];
            let read = self.read_pieces(iova, &mut bytes);
            packet.write(0, &bytes);
            return read;
        };
        // SAFETY: `pointer` checked that all bytes are in a mapping, which lives as long as `self` and is initialised:
        // it is zeroed or the content of a file. Only raw pointers and atomics lead to it.
        packet.write_raw(0, unsafe { RawBytes::new(from, packet.len()) });
        true
    }

    #[cold]
    fn read_pieces(&self, iova: u64, mut out: &mut [u8]) -> bool {
        let Some(pieces) = self.pieces(iova, out.len(), Access::Read) else { return false };
        pieces.iter().all(|piece| piece.read(0, out.split_off_mut(..piece.len()).unwrap_or_default()))
    }

    /// Writes `bytes` to memory; returns `false` and writes nothing if a byte is not mapped for writing.
    #[inline]
    #[must_use]
    pub fn write(&self, iova: u64, bytes: &[u8], hint: &mut LookupHint) -> bool {
        let Some(to) = self.pointer(iova, bytes.len(), Access::ReadWrite, hint) else {
            return self.write_pieces(iova, bytes);
        };
        // SAFETY: `pointer` checked that all bytes are in a mapping that may be written, which lives as long as `self`
        // and to which nobody has a `&mut` reference. `bytes` is readable as a slice.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    #[cold]
    fn write_pieces(&self, iova: u64, mut bytes: &[u8]) -> bool {
        let Some(pieces) = self.pieces(iova, bytes.len(), Access::ReadWrite) else { return false };
        pieces.iter().all(|piece| piece.write(0, bytes.split_off(..piece.len()).unwrap_or_default()))
    }

    /// Prefetches the cache line at an address, if mapped: the line is usually in the cache of the driver's core.
    #[inline]
    pub fn prefetch(&self, iova: u64, access: Access, hint: &mut LookupHint) {
        if let Some(line) = self.pointer(iova, 1, Access::Read, hint) {
            prefetch(line, access);
        }
    }

    /// Stores one aligned word, after all earlier writes (Release). Returns `false` if the address is not mapped for
    /// writing or not aligned.
    #[must_use]
    pub fn store<W: Word>(&self, iova: u64, value: W, hint: &mut LookupHint) -> bool {
        let word = self.word::<W>(iova, Access::ReadWrite, hint);
        word.map(|word| value.store(word)).is_some()
    }

    /// Loads one aligned word, before all later reads (Acquire). `None` if the address is not mapped or not aligned.
    pub fn load<W: Word>(&self, iova: u64, hint: &mut LookupHint) -> Option<W> {
        self.word::<W>(iova, Access::Read, hint).map(W::load)
    }

    fn word<W: Word>(&self, iova: u64, access: Access, hint: &mut LookupHint) -> Option<&W::Atomic> {
        let (memory, offset) = self.find(iova, size_of::<W>(), access, hint)?;
        memory.cell(offset)
    }
}
