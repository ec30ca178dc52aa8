//! Follows descriptor chains, which the guest wrote, to pieces of its memory. Each descriptor is read once,
//! then checked, then used.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::memory::RegionCache;
use super::{Broken, Chain, ChainBatch, DeviceAccess, GuestMemory, MAX_CHAIN_LEN, Piece};
use crate::layout::flags;

/// A descriptor in a ring or table, shared with the guest.
pub(super) type RawDescriptor = [AtomicU64; 2];

/// The fields of a descriptor that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    /// Split: the next descriptor of the chain. Packed: the buffer's id.
    pub(super) number: u16,
}

impl Descriptor {
    /// Decodes a descriptor of a split ring (2.7.5).
    #[inline(always)]
    pub(super) fn split([address, word]: [u64; 2]) -> Self {
        Self { address, len: word as u32, flags: (word >> 32) as u16, number: (word >> 48) as u16 }
    }

    /// Decodes a descriptor of a packed ring (2.8.13).
    #[inline(always)]
    pub(super) fn packed([address, word]: [u64; 2]) -> Self {
        Self { address, len: word as u32, flags: (word >> 48) as u16, number: (word >> 32) as u16 }
    }

    pub(super) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Reads a descriptor's words. The second word, which in packed rings tells the owner, is read first.
#[inline(always)]
pub(super) fn read(cell: &RawDescriptor) -> [u64; 2] {
    let word = cell[1].load(Ordering::Acquire);
    [cell[0].load(Ordering::Relaxed), word]
}

/// Collects the pieces of a chain.
pub(super) struct ChainWalker<'a> {
    pub(super) memory: &'a GuestMemory,
    pub(super) region_cache: &'a mut RegionCache,
    /// Access of the device to all pieces.
    pub(super) access: DeviceAccess,
    /// Most descriptors in an indirect table: as many as the ring has (2.7.5.3.1).
    pub(super) most: u16,
    /// Whether indirect tables are allowed.
    pub(super) indirect: bool,
    /// Number of descriptors that the chain may still have.
    left: usize,
}

/// First piece and total length of a chain so far.
#[derive(Default)]
pub(super) struct Pieces {
    first: Option<Piece>,
    total: u32,
}

impl<'a> ChainWalker<'a> {
    /// Creates a walker for one chain of a queue of `most` descriptors.
    pub(super) fn new(
        memory: &'a GuestMemory,
        region_cache: &'a mut RegionCache,
        access: DeviceAccess,
        most: u16,
        indirect: bool,
    ) -> Self {
        Self { memory, region_cache, access, most, indirect, left: MAX_CHAIN_LEN }
    }

    /// Returns the number of descriptors charged to the chain so far.
    pub(super) fn read(&self) -> usize {
        MAX_CHAIN_LEN - self.left
    }

    fn charge(&mut self, descriptors: usize) -> Result<(), Broken> {
        self.left = self.left.checked_sub(descriptors).ok_or(Broken::ChainTooLong)?;
        Ok(())
    }

    /// Adds the buffer of a descriptor that does not refer to a table.
    pub(super) fn add(&mut self, descriptor: Descriptor, to: &mut Pieces, more: &mut Vec<Piece>) -> Result<(), Broken> {
        let Descriptor { address, len, .. } = descriptor;
        self.charge(1)?;
        if descriptor.is(flags::WRITE) != (self.access == DeviceAccess::Write) {
            return Err(Broken::DeviceAccess);
        }
        to.total = to.total.checked_add(len).ok_or(Broken::LengthOverflow)?;
        let mut count = 0_usize;
        let mut each = |piece| {
            count += 1;
            match to.first {
                None => to.first = Some(piece),
                Some(_) => more.push(piece),
            }
        };
        match self.region_cache.at(address, len) {
            Some(start) => each(Piece { start, len }),
            None => self.memory.pieces(address, len, self.region_cache, each).ok_or(Broken::Address(address, len))?,
        }
        self.charge(count.saturating_sub(1))
    }

    /// Checks an indirect table. Returns its location and its number of descriptors.
    fn table(&mut self, descriptor: Descriptor) -> Result<(Table<'a>, u16), Broken> {
        let Descriptor { address, len, .. } = descriptor;
        if !self.indirect || descriptor.is(flags::NEXT) {
            return Err(Broken::Table);
        }
        let count = len / size_of::<RawDescriptor>() as u32;
        if count == 0 || count > self.most.into() || !(len as usize).is_multiple_of(size_of::<RawDescriptor>()) {
            return Err(Broken::BadTableLen(len));
        }
        let start = self.region_cache.at(address, len).or_else(|| self.memory.guest(address, len.into()));
        let table = match start.map(|start| start.cast::<RawDescriptor>()).filter(|start| start.is_aligned()) {
            // SAFETY: `region_cache.at` and `guest` return an address only if `len` bytes from there are inside
            // a mapped region of `memory`, and `count` descriptors are `len` bytes. The address was checked to
            // be aligned. The memory outlives `'a`, and atomics may change under a shared reference.
            Some(start) => Table::Contiguous(unsafe { std::slice::from_raw_parts(start.as_ptr(), count as usize) }),
            None => {
                let mut count = 0;
                let whole = self.memory.pieces(address, len, self.region_cache, |_| count += 1);
                whole.ok_or(Broken::Address(address, len))?;
                self.charge(count)?;
                Table::Scattered(self.memory, address)
            }
        };
        Ok((table, count as u16))
    }

    /// Adds the buffers of a split ring's table (2.7.5.3): a chain that begins with its first descriptor.
    pub(super) fn add_split_table(
        &mut self,
        descriptor: Descriptor,
        to: &mut Pieces,
        more: &mut Vec<Piece>,
    ) -> Result<(), Broken> {
        let (table, count) = self.table(descriptor)?;
        let mut number = 0;
        for _ in 0..count {
            let entry = Descriptor::split(table.read(number)?);
            if entry.is(flags::INDIRECT) {
                return Err(Broken::Table);
            }
            self.add(entry, to, more)?;
            if !entry.is(flags::NEXT) {
                return Ok(());
            }
            number = Some(entry.number).filter(|&next| next < count).ok_or(Broken::BadNext(entry.number))?;
        }
        Err(Broken::ChainTooLong)
    }

    /// Adds the buffers of a packed ring's table (2.8.8): all of its descriptors, in order.
    pub(super) fn add_packed_table(
        &mut self,
        descriptor: Descriptor,
        to: &mut Pieces,
        more: &mut Vec<Piece>,
    ) -> Result<(), Broken> {
        let (table, count) = self.table(descriptor)?;
        for number in 0..count {
            let entry = Descriptor::packed(table.read(number)?);
            if entry.is(flags::INDIRECT) {
                return Err(Broken::Table);
            }
            self.add(entry, to, more)?;
        }
        Ok(())
    }
}

/// An indirect table.
enum Table<'a> {
    /// Contiguous in this process, and aligned.
    Contiguous(&'a [RawDescriptor]),
    /// At a guest address; may be unaligned, or span several regions.
    Scattered(&'a GuestMemory, u64),
}

impl Table<'_> {
    /// Reads the words of descriptor `number`, which must be below the table's length.
    fn read(&self, number: u16) -> Result<[u64; 2], Broken> {
        match *self {
            Self::Contiguous(cells) => Ok(read(&cells[usize::from(number)])),
            Self::Scattered(memory, table) => {
                let start = table.wrapping_add(u64::from(number) * size_of::<RawDescriptor>() as u64);
                let byte = |at: u64| {
                    let place = memory.guest(start.wrapping_add(at), 1);
                    let place = place.ok_or(Broken::Address(start, size_of::<RawDescriptor>() as u32))?;
                    // SAFETY: `guest` has checked that this byte is inside a mapped region of `memory`, which
                    // outlives the borrow. A byte is always aligned, and an atomic may change under a shared
                    // reference.
                    Ok(u64::from(unsafe { place.cast::<AtomicU8>().as_ref() }.load(Ordering::Relaxed)))
                };
                let word = |at: u64| (0..8).try_fold(0, |word, i| Ok(word | byte(at + i)? << (8 * i)));
                Ok([word(0)?, word(8)?])
            }
        }
    }
}

impl Pieces {
    /// Builds the chain. The pieces that were added to `taken` from index `start` on belong to it.
    pub(super) fn into_chain(self, id: u16, descriptors: u16, start: usize, taken: &ChainBatch) -> Chain {
        let nothing = Piece { start: std::ptr::NonNull::dangling(), len: 0 };
        let more = (start as u32, (taken.pieces.len() - start) as u32);
        Chain { id, descriptors, first: self.first.unwrap_or(nothing), more }
    }
}
