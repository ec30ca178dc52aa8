//! A descriptor ring and the buffers that lie behind it.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ringpass_memory::{Buffer, DmaArray, DmaRegion, Error};

/// A descriptor: two words that driver and card both access.
pub(crate) type Descriptor = [AtomicU64; 2];

/// A ring whose descriptors `head..tail` are posted: the card has them, and their buffers are in `buffers`.
pub(crate) struct Ring {
    pub(crate) descriptors: DmaArray<Descriptor>,
    /// Initialised exactly where posted.
    pub(crate) buffers: Box<[MaybeUninit<Buffer>]>,
    /// These count on for ever; modulo the ring's size they are indices.
    pub(crate) head: usize,
    pub(crate) tail: usize,
}

impl Ring {
    /// A ring of `size` descriptors (a power of two) in a region, with none posted.
    pub(crate) fn new(region: &Arc<DmaRegion>, offset: usize, size: usize) -> Result<Self, Error> {
        let buffers = (0..size).map(|_| MaybeUninit::uninit()).collect();
        Ok(Self { descriptors: DmaArray::new(region, offset, size)?, buffers, head: 0, tail: 0 })
    }

    #[inline]
    pub(crate) fn posted(&self) -> usize {
        self.tail - self.head
    }

    /// One descriptor always stays free: a tail that meets the head would mean an empty ring (7.1.9, 7.2.3.4).
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.buffers.len() - 1 - self.posted()
    }

    #[inline]
    pub(crate) fn index(&self, count: usize) -> usize {
        count & (self.buffers.len() - 1)
    }

    /// Indices of the posted descriptors, as far as they are in one piece.
    #[inline]
    pub(crate) fn posted_run(&self) -> Range<usize> {
        let start = self.index(self.head);
        start..self.buffers.len().min(start + self.posted())
    }

    /// Indices of the descriptors that may be posted, as far as they are in one piece.
    #[inline]
    pub(crate) fn free_run(&self) -> Range<usize> {
        let start = self.index(self.tail);
        start..self.buffers.len().min(start + self.room())
    }

    /// The descriptors of a run, each with the place of its buffer.
    #[inline]
    pub(crate) fn run(&mut self, run: Range<usize>) -> impl Iterator<Item = (&Descriptor, &mut MaybeUninit<Buffer>)> {
        // SAFETY: runs lie inside the ring, and there are as many places as descriptors.
        let run = unsafe { (self.descriptors.get_unchecked(run.clone()), self.buffers.get_unchecked_mut(run)) };
        run.0.iter().zip(run.1)
    }

    /// Takes the oldest buffer.
    ///
    /// # Panics
    /// If none is posted.
    #[inline]
    pub(crate) fn pop(&mut self) -> Buffer {
        assert!(self.posted() > 0);
        let index = self.index(self.head);
        self.head += 1;
        // SAFETY: it was posted, and is no longer.
        unsafe { self.buffers[index].assume_init_read() }
    }

    /// Keeps buffers and memory for ever, because a card that did not stop may still use them.
    pub(crate) fn leak(&mut self) {
        self.descriptors.leak();
        self.head = self.tail;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.posted() > 0 {
            drop(self.pop());
        }
    }
}
