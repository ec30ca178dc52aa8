//! Rings of descriptors in memory that a device was given.

use std::sync::atomic::AtomicU64;

use ringpass_memory::{Access, Cells, DmaMap, Memory, prefetch};

/// A descriptor of 16 bytes that device and driver access concurrently.
pub(crate) type Descriptor = [AtomicU64; 2];

/// A ring of descriptors. It keeps its memory mapped; the device drops the ring when the driver unmaps that
/// memory.
pub(crate) struct Ring {
    iova: u64,
    len: usize,
    first: Cells<Descriptor>,
    /// Empty unless the driver's pages are scattered in this process.
    others: Box<[Cells<Descriptor>]>,
}

impl Ring {
    /// Returns a ring of descriptors. `None` unless all of it is mapped for writing and each descriptor is
    /// aligned and in one piece.
    pub(crate) fn new(dma: &DmaMap, iova: u64, descriptors: usize) -> Option<Self> {
        let bytes = descriptors.checked_mul(size_of::<Descriptor>())?;
        let mut pieces: Vec<Memory> = Vec::new();
        for piece in dma.pieces(iova, bytes, Access::ReadWrite)? {
            let whole = piece.len().is_multiple_of(size_of::<Descriptor>());
            whole.then(|| piece.cell::<Descriptor>(0)).flatten()?;
            // Pages that were mapped one at a time are often contiguous in this process too.
            if !pieces.last_mut().is_some_and(|last| last.append(&piece)) {
                pieces.push(piece);
            }
        }
        let mut pieces = pieces.iter().filter_map(|piece| piece.cells(0, piece.len() / size_of::<Descriptor>()));
        Some(Self { iova, len: descriptors, first: pieces.next()?, others: pieces.collect() })
    }

    /// Number of descriptors.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of descriptors from `head` up to `tail`: none if either lies outside the ring, as the head
    /// does when the driver's memory has changed and the ring is now shorter.
    #[inline]
    pub(crate) fn distance(&self, head: usize, tail: usize) -> usize {
        let len = self.len();
        if head >= len || tail >= len { 0 } else { (tail + len - head) % len }
    }

    /// Returns the descriptor at `index`, or `None` if the ring is shorter.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Descriptor> {
        self.first.get(index).or_else(|| self.contiguous_far(index - self.first.len()).first())
    }

    /// Returns up to `limit` descriptors from `head` on, as many as are contiguous in this process: none if `head` is
    /// outside the ring.
    #[inline]
    pub(crate) fn contiguous(&self, head: usize, limit: usize) -> &[Descriptor] {
        let from = self.first.get(head..).filter(|from| !from.is_empty());
        let from = from.unwrap_or_else(|| self.contiguous_far(head.saturating_sub(self.first.len())));
        &from[..from.len().min(limit)]
    }

    /// Returns the descriptors that are contiguous from a position behind the first piece on.
    #[cold]
    fn contiguous_far(&self, mut head: usize) -> &[Descriptor] {
        for piece in &self.others {
            if head < piece.len() {
                return &piece[head..];
            }
            head -= piece.len();
        }
        &[]
    }

    /// Returns whether any descriptor lies in a range of addresses.
    pub(crate) fn overlaps(&self, iova: u64, len: u64) -> bool {
        let bytes = (self.len * size_of::<Descriptor>()) as u64;
        len > 0 && self.iova <= iova.saturating_add(len - 1) && iova <= self.iova + (bytes - 1)
    }

    /// Prefetches `count` descriptors from `head` on, as far as they are in the ring's first piece.
    pub(crate) fn prefetch(&self, head: usize, count: usize, access: Access) {
        const PER_LINE: usize = 64 / size_of::<Descriptor>();
        let lines = self.first.get(head..(head + count).min(self.first.len())).unwrap_or_default();
        lines.iter().step_by(PER_LINE).for_each(|descriptor| prefetch(descriptor, access));
    }
}
