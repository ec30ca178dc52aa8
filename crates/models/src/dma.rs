//! The memory that a card was given, and the card's only ways into it: every access is looked up first.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ringpass_memory::{Atomics, DmaArray, DmaRegion};

/// A descriptor of 16 bytes, which card and driver access at the same time.
pub(crate) struct Descriptor(pub [AtomicU64; 2]);

// SAFETY: two atomic integers without padding.
unsafe impl Atomics for Descriptor {}

/// Memory that is contiguous on both sides.
struct Stretch {
    iova: u64,
    len: u64,
    start: NonNull<u8>,
    /// Where the stretch begins in its region, which it keeps mapped.
    offset: usize,
    region: Arc<DmaRegion>,
}

// SAFETY: points into the region that it keeps; whoever has the stretch may access that from any thread.
unsafe impl Send for Stretch {}

impl Stretch {
    /// Where `len` bytes from `iova` begin, if all of them are inside.
    #[inline]
    fn offset_of(&self, iova: u64, len: usize) -> Option<usize> {
        let offset = iova.wrapping_sub(self.iova);
        (offset < self.len && len as u64 <= self.len - offset).then_some(offset as usize)
    }
}

/// Which stretch a caller's last access hit; the next one mostly hits it too.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hint(usize);

/// The regions that a card may access. They stay until the card is dropped.
#[derive(Default)]
pub(crate) struct DmaMap(Vec<Stretch>);

impl DmaMap {
    pub(crate) fn add(&mut self, region: &Arc<DmaRegion>) {
        for (iova, offset, len) in region.stretches() {
            if self.find(iova, len, &mut Hint::default()).is_none() {
                let start = NonNull::new(region.at(offset)).expect("a mapping is not at address 0");
                self.0.push(Stretch { iova, len: len as u64, start, offset, region: region.clone() });
            }
        }
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
        let found = |(i, stretch): (usize, &Stretch)| Some((i, stretch.offset_of(iova, len)?));
        let (i, offset) = self.0.iter().enumerate().find_map(found)?;
        hint.0 = i;
        Some((&self.0[i], offset))
    }

    #[inline]
    fn pointer(&self, iova: u64, len: usize, hint: &mut Hint) -> Option<*mut u8> {
        let (stretch, offset) = self.find(iova, len, hint)?;
        // SAFETY: `find` says that the offset is inside the stretch.
        Some(unsafe { stretch.start.as_ptr().add(offset) })
    }

    /// Reads memory into `out`; `false`, and nothing read, where it is not the card's.
    #[inline]
    #[must_use]
    pub(crate) fn read(&self, iova: u64, out: &mut [u8], hint: &mut Hint) -> bool {
        let Some(from) = self.pointer(iova, out.len(), hint) else { return false };
        // SAFETY: `pointer` checked the whole range, in a mapping that lives as long as `self`; `out` is memory of the
        // model's own, which is in no region of the driver's. A driver that writes a frame after handing it over makes
        // the card read a mixture of bytes, as it would with a card of silicon; nothing is derived from them here.
        unsafe { copy(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Writes `bytes` to memory; `false`, and nothing written, where it is not the card's.
    #[inline]
    #[must_use]
    pub(crate) fn write(&self, iova: u64, bytes: &[u8], hint: &mut Hint) -> bool {
        let Some(to) = self.pointer(iova, bytes.len(), hint) else { return false };
        // SAFETY: as in `read`. The driver gave this memory to the card by its descriptor and has no reference into it
        // until the descriptor is written back; it vouched for that when it wrote the ring's base (`write_dma`).
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Writes one aligned word, after all that was written before.
    #[must_use]
    pub(crate) fn store(&self, iova: u64, value: u32, hint: &mut Hint) -> bool {
        let Some(to) = self.pointer(iova, 4, hint).filter(|to| to.addr().is_multiple_of(4)) else { return false };
        // SAFETY: in range and aligned, as just checked; the mapping lives as long as `self`.
        unsafe { AtomicU32::from_ptr(to.cast()) }.store(value, Ordering::Release);
        true
    }

    /// A ring of descriptors; `None` where it is not all in the card's memory, or not aligned.
    pub(crate) fn ring(&self, iova: u64, descriptors: usize) -> Option<DmaArray<Descriptor>> {
        let bytes = descriptors.checked_mul(size_of::<Descriptor>())?;
        let (stretch, offset) = self.find(iova, bytes, &mut Hint::default())?;
        DmaArray::new(&stretch.region, stretch.offset + offset, descriptors).ok()
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
fn prefetch(line: *const u8, intent: Intent) {
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
pub(crate) fn prefetch_descriptors(ring: &[Descriptor], head: usize, count: usize, intent: Intent) {
    const A_LINE: usize = 64 / size_of::<Descriptor>();
    let soon = ring.iter().skip(head).take(count).step_by(A_LINE);
    soon.for_each(|descriptor| prefetch(std::ptr::from_ref(descriptor).cast(), intent));
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
