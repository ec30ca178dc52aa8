//! Chains: from descriptors, which the guest wrote, to pieces of its memory. Each descriptor is read once, checked, used.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::memory::Window;
use super::{Access, Broken, Chain, GuestMemory, LONGEST_CHAIN, Piece, Taken};
use crate::layout::flags;

/// A descriptor in a ring or table.
pub(super) type Cell = [AtomicU64; 2];

/// A descriptor that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    /// Split: where the chain goes on. Packed: the buffer's number.
    pub(super) number: u16,
}

impl Descriptor {
    /// As split rings have it (2.7.5).
    #[inline(always)]
    pub(super) fn split([address, word]: [u64; 2]) -> Self {
        Self { address, len: word as u32, flags: (word >> 32) as u16, number: (word >> 48) as u16 }
    }

    /// As packed rings have it (2.8.13).
    #[inline(always)]
    pub(super) fn packed([address, word]: [u64; 2]) -> Self {
        Self { address, len: word as u32, flags: (word >> 48) as u16, number: (word >> 32) as u16 }
    }

    pub(super) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Reads a descriptor's words. The second one, which says whose it is in packed rings, comes first.
#[inline(always)]
pub(super) fn read(cell: &Cell) -> [u64; 2] {
    let word = cell[1].load(Ordering::Acquire);
    [cell[0].load(Ordering::Relaxed), word]
}

/// What the pieces of a chain are gathered with.
pub(super) struct Gather<'a> {
    pub(super) memory: &'a GuestMemory,
    pub(super) window: &'a mut Window,
    /// What the device does to all of them.
    pub(super) access: Access,
    /// Descriptors that a table may have: as many as the ring (2.7.5.3.1).
    pub(super) most: u16,
    /// Whether there may be tables.
    pub(super) indirect: bool,
    /// Descriptors that the chain may still have.
    left: usize,
}

/// Pieces of a chain so far.
#[derive(Default)]
pub(super) struct Pieces {
    first: Option<Piece>,
    total: u32,
}

impl<'a> Gather<'a> {
    /// For one chain of a queue of `most` descriptors.
    pub(super) fn new(
        memory: &'a GuestMemory,
        window: &'a mut Window,
        access: Access,
        most: u16,
        indirect: bool,
    ) -> Self {
        Self { memory, window, access, most, indirect, left: LONGEST_CHAIN }
    }

    /// Descriptors that the chain has had so far.
    pub(super) fn read(&self) -> usize {
        LONGEST_CHAIN - self.left
    }

    fn charge(&mut self, descriptors: usize) -> Result<(), Broken> {
        self.left = self.left.checked_sub(descriptors).ok_or(Broken::Long)?;
        Ok(())
    }

    /// Adds what a descriptor that is no table names.
    pub(super) fn add(&mut self, descriptor: Descriptor, to: &mut Pieces, more: &mut Vec<Piece>) -> Result<(), Broken> {
        let Descriptor { address, len, .. } = descriptor;
        self.charge(1)?;
        if descriptor.is(flags::WRITE) != (self.access == Access::Write) {
            return Err(Broken::Access);
        }
        to.total = to.total.checked_add(len).ok_or(Broken::Sum)?;
        let mut count = 0_usize;
        let mut each = |piece| {
            count += 1;
            match to.first {
                None => to.first = Some(piece),
                Some(_) => more.push(piece),
            }
        };
        match self.window.at(address, len) {
            Some(start) => each(Piece { start, len }),
            None => self.memory.pieces(address, len, self.window, each).ok_or(Broken::Address(address, len))?,
        }
        self.charge(count.saturating_sub(1))
    }

    /// Where a table lies, and how many descriptors it has.
    fn table(&mut self, descriptor: Descriptor) -> Result<(Table<'a>, u16), Broken> {
        let Descriptor { address, len, .. } = descriptor;
        if !self.indirect || descriptor.is(flags::NEXT) {
            return Err(Broken::Table);
        }
        let count = len / size_of::<Cell>() as u32;
        if count == 0 || count > self.most.into() || !(len as usize).is_multiple_of(size_of::<Cell>()) {
            return Err(Broken::TableLen(len));
        }
        let start = self.window.at(address, len).or_else(|| self.memory.guest(address, len.into()));
        let table = match start.map(|start| start.cast::<Cell>()).filter(|start| start.is_aligned()) {
            // SAFETY: `count` descriptors are there, aligned, in memory that outlives `'a`; atomics may change under a
            // shared reference.
            Some(start) => Table::Near(unsafe { std::slice::from_raw_parts(start.as_ptr(), count as usize) }),
            None => {
                let mut count = 0;
                let whole = self.memory.pieces(address, len, self.window, |_| count += 1);
                whole.ok_or(Broken::Address(address, len))?;
                self.charge(count)?;
                Table::Far(self.memory, address)
            }
        };
        Ok((table, count as u16))
    }

    /// Adds what a split ring's table names (2.7.5.3): a chain that begins with its first descriptor.
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
            number = Some(entry.number).filter(|&next| next < count).ok_or(Broken::Next(entry.number))?;
        }
        Err(Broken::Long)
    }

    /// Adds what a packed ring's table names (2.8.8): all of its descriptors in order.
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
    /// In one piece, and aligned.
    Near(&'a [Cell]),
    /// In whatever pieces, at a guest address.
    Far(&'a GuestMemory, u64),
}

impl Table<'_> {
    /// Reads the words of a descriptor that the table has.
    fn read(&self, number: u16) -> Result<[u64; 2], Broken> {
        match *self {
            Self::Near(cells) => Ok(read(&cells[usize::from(number)])),
            Self::Far(memory, table) => {
                let start = table.wrapping_add(u64::from(number) * size_of::<Cell>() as u64);
                let byte = |at: u64| {
                    let place = memory.guest(start.wrapping_add(at), 1);
                    let place = place.ok_or(Broken::Address(start, size_of::<Cell>() as u32))?;
                    // SAFETY: a byte of the guest's memory, which outlives the borrow; atomics may change.
                    Ok(u64::from(unsafe { place.cast::<AtomicU8>().as_ref() }.load(Ordering::Relaxed)))
                };
                let word = |at: u64| (0..8).try_fold(0, |word, i| Ok(word | byte(at + i)? << (8 * i)));
                Ok([word(0)?, word(8)?])
            }
        }
    }
}

impl Pieces {
    /// The chain that they make: what was added to `taken` from `start` on belongs to it.
    pub(super) fn into_chain(self, id: u16, descriptors: u16, start: usize, taken: &Taken) -> Chain {
        let nothing = Piece { start: std::ptr::NonNull::dangling(), len: 0 };
        let more = (start as u32, (taken.pieces.len() - start) as u32);
        Chain { id, descriptors, first: self.first.unwrap_or(nothing), more }
    }
}
