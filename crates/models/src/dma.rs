//! The memory that a card was given, and the card's only ways into it: every access is looked up first.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use ringpass_memory::{DmaRegion, ForeignMemory, Packet, RawBytes};
use ringpass_port::Error;

/// A descriptor of 16 bytes, which card and driver access at the same time.
pub(crate) struct Descriptor(pub [AtomicU64; 2]);

/// What a card may do with memory that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// What keeps memory mapped.
type Owner = Arc<dyn Send + Sync>;

/// Memory that is contiguous on both sides.
#[derive(Clone)]
struct Stretch {
    iova: u64,
    len: u64,
    start: NonNull<u8>,
    access: Access,
    owner: Owner,
}

// SAFETY: points into the memory that it keeps; whoever has the stretch may access that from any thread.
unsafe impl Send for Stretch {}

impl Stretch {
    /// Where `len` bytes from `iova` begin, if all of them are inside.
    #[inline]
    fn offset_of(&self, iova: u64, len: usize) -> Option<usize> {
        let offset = iova.wrapping_sub(self.iova);
        (offset < self.len && len as u64 <= self.len - offset).then_some(offset as usize)
    }

    /// The address of a byte inside.
    #[inline]
    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!((offset as u64) < self.len);
        // SAFETY: callers have the offset from `offset_of`, or checked it against `len` as it does.
        unsafe { self.start.add(offset) }
    }

    /// The first address behind it. That of the last stretch may be 0, which is 2^64.
    fn last(&self) -> u64 {
        self.iova + (self.len - 1)
    }

    /// The part from `iova` on with `len` bytes, all inside.
    fn part(&self, iova: u64, len: u64) -> Self {
        Self { iova, len, start: self.at((iova - self.iova) as usize), ..self.clone() }
    }
}

/// What card and driver access in one go.
pub(crate) trait Word: Sized {
    /// # Safety
    /// Valid and aligned.
    unsafe fn load(from: *mut u8) -> Self;

    /// # Safety
    /// Likewise.
    unsafe fn store(to: *mut u8, value: Self);
}

macro_rules! words {
    ($($word:ty, $atomic:ty;)*) => {$(
        impl Word for $word {
            #[inline]
            unsafe fn load(from: *mut u8) -> Self {
                // SAFETY: as the caller says; atomics may change under a shared reference.
                unsafe { <$atomic>::from_ptr(from.cast()) }.load(Ordering::Acquire)
            }

            #[inline]
            unsafe fn store(to: *mut u8, value: Self) {
                // SAFETY: likewise.
                unsafe { <$atomic>::from_ptr(to.cast()) }.store(value, Ordering::Release);
            }
        }
    )*};
}

words! {
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

/// Which stretch a caller's last access hit; the next one mostly hits it too.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hint(usize);

/// The memory that a card may access: stretches by address, none overlapping.
#[derive(Default)]
pub(crate) struct DmaMap(Vec<Stretch>);

impl DmaMap {
    /// Adds a region of this process. What the card has already stays as it is.
    pub(crate) fn add(&mut self, region: &Arc<DmaRegion>) {
        for (iova, offset, len) in region.stretches() {
            let start = NonNull::new(region.at(offset)).expect("a mapping is not at address 0");
            // A region that is mapped twice.
            let _ =
                self.insert(Stretch { iova, len: len as u64, start, access: Access::ReadWrite, owner: region.clone() });
        }
    }

    /// Adds a part of another process's memory.
    pub(crate) fn add_foreign(
        &mut self,
        iova: u64,
        memory: &Arc<ForeignMemory>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<(), Error> {
        let refused = |why: &str| Err(Error::Other(format!("DMA map of {len:#x} bytes at {iova:#x}: {why}")));
        if len == 0 || iova.checked_add(len as u64 - 1).is_none() {
            return refused("it is empty, or ends behind the last address");
        }
        if offset.checked_add(len).is_none_or(|end| end > memory.len()) {
            return refused("it ends behind the memory it is a part of");
        }
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { memory.as_ptr().add(offset) };
        let start = NonNull::new(start).expect("a mapping is not at address 0");
        match self.insert(Stretch { iova, len: len as u64, start, access, owner: memory.clone() }) {
            true => Ok(()),
            false => refused("it overlaps another map; unmap that first"),
        }
    }

    /// Adds a stretch; `false` if it overlaps another.
    fn insert(&mut self, stretch: Stretch) -> bool {
        let at = self.first_from(stretch.iova);
        let free = self.0.get(at).is_none_or(|next| stretch.last() < next.iova);
        if free {
            self.0.insert(at, stretch);
        }
        free
    }

    /// Index of the first stretch that ends at `iova` or behind it.
    fn first_from(&self, iova: u64) -> usize {
        self.0.partition_point(|stretch| stretch.last() < iova)
    }

    /// Takes memory away: all that was added in this span.
    pub(crate) fn remove(&mut self, iova: u64, len: u64) {
        let Some(last) = len.checked_sub(1).map(|more| iova.saturating_add(more)) else { return };
        let from = self.first_from(iova);
        let to = from + self.0[from..].partition_point(|stretch| stretch.iova <= last);
        let Some(touched) = self.0.get(from..to).filter(|touched| !touched.is_empty()) else { return };
        // Of the first and the last stretch a part may stay.
        let (first, end) = (&touched[0], &touched[touched.len() - 1]);
        let before = (first.iova < iova).then(|| first.part(first.iova, iova - first.iova));
        let behind = (end.last() > last).then(|| end.part(last + 1, end.last() - last));
        self.0.splice(from..to, before.into_iter().chain(behind));
    }

    /// Takes all memory away.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The stretch that has all of `len` bytes from `iova`, and where in it they begin.
    #[inline]
    fn find(&self, iova: u64, len: usize, hint: &mut Hint) -> Option<(&Stretch, usize)> {
        if let Some(stretch) = self.0.get(hint.0)
            && let Some(offset) = stretch.offset_of(iova, len)
        {
            return Some((stretch, offset));
        }
        self.search(iova, len, hint)
    }

    #[cold]
    fn search(&self, iova: u64, len: usize, hint: &mut Hint) -> Option<(&Stretch, usize)> {
        let i = self.first_from(iova);
        let stretch = self.0.get(i)?;
        let offset = stretch.offset_of(iova, len)?;
        hint.0 = i;
        Some((stretch, offset))
    }

    /// Where `len` bytes from `iova` lie, if they are in one stretch that allows the access.
    #[inline]
    fn pointer(&self, iova: u64, len: usize, access: Access, hint: &mut Hint) -> Option<*mut u8> {
        let (stretch, offset) = self.find(iova, len, hint)?;
        (access == Access::Read || stretch.access == access).then(|| stretch.at(offset).as_ptr())
    }

    /// The pieces of a range that lies over several stretches; `None` if not all of it may be accessed.
    fn pieces(&self, mut iova: u64, mut len: usize, access: Access) -> Option<Vec<(&Stretch, usize, usize)>> {
        let mut pieces = Vec::new();
        let mut i = self.first_from(iova);
        while len > 0 {
            let stretch = self.0.get(i).filter(|stretch| access == Access::Read || stretch.access == access)?;
            let offset = stretch.offset_of(iova, 1)?;
            let here = len.min(usize::try_from(stretch.len).unwrap_or(usize::MAX) - offset);
            pieces.push((stretch, offset, here));
            (i, len) = (i + 1, len - here);
            // Behind the last address there is no stretch, so that 0 is not found there.
            iova = if len > 0 { iova.checked_add(here as u64)? } else { iova };
        }
        Some(pieces)
    }

    /// Reads memory into `out`; `false`, and nothing read, where it is not the card's.
    #[inline]
    #[must_use]
    pub(crate) fn read(&self, iova: u64, out: &mut [u8], hint: &mut Hint) -> bool {
        let Some(from) = self.pointer(iova, out.len(), Access::Read, hint) else { return self.read_pieces(iova, out) };
        // SAFETY: `pointer` checked the whole range, in a mapping that lives as long as `self`; `out` is memory of the
        // model's own, which is in no region of the driver's. A driver that writes a frame after handing it over makes
        // the card read a mixture of bytes, as it would with a card of silicon; nothing is derived from them here.
        unsafe { copy(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Reads memory into all of a packet's frame; `false`, and nothing read, where it is not the card's.
    #[inline]
    #[must_use]
    pub(crate) fn read_packet(&self, iova: u64, packet: &mut Packet, hint: &mut Hint) -> bool {
        let Some(from) = self.pointer(iova, packet.len(), Access::Read, hint) else {
            let mut bytes = vec![0; packet.len()];
            let read = self.read_pieces(iova, &mut bytes);
            packet.write(0, &bytes);
            return read;
        };
        // SAFETY: `pointer` checked that the whole range lies in a mapping, which lives as long as `self` and is initialised as
        // all mappings are. Only raw pointers lead there.
        packet.write_raw(0, unsafe { RawBytes::new(from, packet.len()) });
        true
    }

    #[cold]
    fn read_pieces(&self, iova: u64, mut out: &mut [u8]) -> bool {
        let Some(pieces) = self.pieces(iova, out.len(), Access::Read) else { return false };
        for (stretch, offset, len) in pieces {
            let (part, rest) = out.split_at_mut(len);
            // SAFETY: as in `read`; `pieces` has cut the range at the ends of the stretches.
            unsafe { copy(stretch.at(offset).as_ptr(), part.as_mut_ptr(), len) };
            out = rest;
        }
        true
    }

    /// Brings the line at an address into the cache, if that is the card's: the driver's core has it.
    #[inline]
    pub(crate) fn prefetch(&self, iova: u64, intent: Intent, hint: &mut Hint) {
        if let Some((stretch, offset)) = self.find(iova, 1, hint) {
            prefetch(stretch.at(offset).as_ptr(), intent);
        }
    }

    /// Writes `bytes` to memory; `false`, and nothing written, where it is not the card's.
    #[inline]
    #[must_use]
    pub(crate) fn write(&self, iova: u64, bytes: &[u8], hint: &mut Hint) -> bool {
        let Some(to) = self.pointer(iova, bytes.len(), Access::ReadWrite, hint) else {
            return self.write_pieces(iova, bytes);
        };
        // SAFETY: as in `read`. The driver gave this memory to the card by its descriptor and has no reference into it
        // until the descriptor is written back; it vouched for that when it wrote the ring's base (`write_dma`).
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    #[cold]
    fn write_pieces(&self, iova: u64, mut bytes: &[u8]) -> bool {
        let Some(pieces) = self.pieces(iova, bytes.len(), Access::ReadWrite) else { return false };
        for (stretch, offset, len) in pieces {
            let (part, rest) = bytes.split_at(len);
            // SAFETY: as in `write`; `pieces` has cut the range at the ends of the stretches.
            unsafe { copy(part.as_ptr(), stretch.at(offset).as_ptr(), len) };
            bytes = rest;
        }
        true
    }

    /// Writes one aligned word, after all that was written before.
    #[must_use]
    pub(crate) fn store<W: Word>(&self, iova: u64, value: W, hint: &mut Hint) -> bool {
        let pointer = self.pointer(iova, size_of::<W>(), Access::ReadWrite, hint);
        let Some(to) = pointer.filter(|to| to.addr().is_multiple_of(size_of::<W>())) else { return false };
        // SAFETY: in range and aligned, as just checked; the mapping lives as long as `self`.
        unsafe { W::store(to, value) };
        true
    }

    /// Reads one aligned word, before all that is read afterwards.
    pub(crate) fn load<W: Word>(&self, iova: u64, hint: &mut Hint) -> Option<W> {
        let pointer = self.pointer(iova, size_of::<W>(), Access::Read, hint);
        let from = pointer.filter(|from| from.addr().is_multiple_of(size_of::<W>()))?;
        // SAFETY: as in `store`.
        Some(unsafe { W::load(from) })
    }

    /// A ring of descriptors; `None` where it is not all in memory that the card may write, or a descriptor is not
    /// aligned or not in one piece.
    pub(crate) fn ring(&self, iova: u64, descriptors: usize) -> Option<Ring> {
        let bytes = descriptors.checked_mul(size_of::<Descriptor>())?;
        let mut pieces: Vec<Piece> = Vec::new();
        for (stretch, offset, len) in self.pieces(iova, bytes, Access::ReadWrite)? {
            let start = stretch.at(offset).cast::<Descriptor>();
            if !start.is_aligned() || !len.is_multiple_of(size_of::<Descriptor>()) {
                return None;
            }
            let len = len / size_of::<Descriptor>();
            match pieces.last_mut() {
                // Pages that were mapped one by one are often contiguous here too.
                Some(last) if last.end() == start.as_ptr() && Arc::ptr_eq(&last.owner, &stretch.owner) => {
                    last.len += len
                }
                _ => pieces.push(Piece { start, len, owner: stretch.owner.clone() }),
            }
        }
        let mut pieces = pieces.into_iter();
        Some(Ring { iova, len: descriptors, first: pieces.next()?, others: pieces.collect() })
    }
}

/// Descriptors that lie in one piece here.
struct Piece {
    start: NonNull<Descriptor>,
    len: usize,
    owner: Owner,
}

impl Piece {
    fn end(&self) -> *mut Descriptor {
        self.start.as_ptr().wrapping_add(self.len)
    }
}

// SAFETY: points to atomics in memory that it keeps.
unsafe impl Send for Piece {}

/// A ring of descriptors. It keeps its memory mapped; the card lets go of the ring when that is taken away.
pub(crate) struct Ring {
    iova: u64,
    len: usize,
    first: Piece,
    /// Empty, but where a driver's pages lie scattered here.
    others: Box<[Piece]>,
}

impl Ring {
    /// How many descriptors it has.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A descriptor, if the ring has so many.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Descriptor> {
        if index < self.first.len {
            // SAFETY: inside the piece, which `DmaMap::ring` found aligned and in memory that the piece keeps; atomics
            // are valid for any bits and may change under a shared reference.
            return Some(unsafe { self.first.start.add(index).as_ref() });
        }
        self.get_far(index - self.first.len)
    }

    #[cold]
    fn get_far(&self, mut index: usize) -> Option<&Descriptor> {
        for piece in &self.others {
            if index < piece.len {
                // SAFETY: as in `get`.
                return Some(unsafe { piece.start.add(index).as_ref() });
            }
            index -= piece.len;
        }
        None
    }

    /// Whether a span of addresses has some of its descriptors.
    pub(crate) fn overlaps(&self, iova: u64, len: u64) -> bool {
        let bytes = (self.len * size_of::<Descriptor>()) as u64;
        len > 0 && self.iova <= iova.saturating_add(len - 1) && iova <= self.iova + (bytes - 1)
    }
}

/// What a line is brought into the cache for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    /// It is taken from the driver's core at once, not in two turns.
    Write,
}

/// Brings a line into the cache while other work goes on.
#[inline]
pub(crate) fn prefetch(line: *const u8, intent: Intent) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: hints without architectural effect, whatever the address. Processors without `prefetchw` treat it as no
    // operation.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        match intent {
            Intent::Read => _mm_prefetch(line.cast(), _MM_HINT_T0),
            Intent::Write => std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)),
        }
    }
}

/// Does so for `count` descriptors of a ring from `head` on, as far as they are in one piece.
pub(crate) fn prefetch_descriptors(ring: &Ring, head: usize, count: usize, intent: Intent) {
    const A_LINE: usize = 64 / size_of::<Descriptor>();
    let end = (head + count).min(ring.first.len);
    (head..end).step_by(A_LINE).for_each(|i| prefetch(ring.first.start.as_ptr().wrapping_add(i).cast(), intent));
}

/// Copies `len` bytes. The shortest frames, which decide about packets a second, go without a call.
///
/// # Safety
/// Both ranges are valid. They may overlap: a frame of the wire may lie in a region of the driver's.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    const HALF: usize = 32;
    if !(HALF..=2 * HALF).contains(&len) {
        // SAFETY: as the caller says.
        return unsafe { std::ptr::copy(from, to, len) };
    }
    // SAFETY: `len` is at least `HALF`, so both halves are in the range; they overlap in the middle. All is read before
    // any is written. Byte arrays need no alignment.
    unsafe {
        let first = from.cast::<[u8; HALF]>().read();
        let last = from.add(len - HALF).cast::<[u8; HALF]>().read();
        to.cast::<[u8; HALF]>().write(first);
        to.add(len - HALF).cast::<[u8; HALF]>().write(last);
    }
}
