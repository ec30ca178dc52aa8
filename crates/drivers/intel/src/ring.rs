//! A descriptor ring and the buffers that its descriptors point to.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::{Buffer, DmaArray};
use ringpass_pci::registers::ixgbe::bits::{RXDCTL_ENABLE, TXDCTL_ENABLE};
use ringpass_pci::registers::ixgbe::descriptor::TX_RS;
use ringpass_pci::registers::{Doorbell, RW, Reg};
use ringpass_port::Error;

use crate::device::Device;
use crate::family::RingRegisters;

/// A descriptor: two 64-bit words that driver and card both access.
pub(crate) type Descriptor = [AtomicU64; 2];
/// The descriptors of a ring, in memory that the card accesses by DMA.
pub(crate) type Descriptors = DmaArray<Descriptor>;

/// Smallest number of free buffers that are posted to an Rx ring at once.
pub(crate) const REFILL: usize = 32;

/// Enable bit in the control register of an Rx queue (RXDCTL) and of a Tx queue (TXDCTL).
const ENABLE: u32 = RXDCTL_ENABLE;
const _: () = assert!(ENABLE == TXDCTL_ENABLE);

/// A descriptor ring with the buffers of its posted descriptors.
///
/// Descriptors `head..tail` are posted: they belong to the card, and their buffers are in `buffers`.
pub(crate) struct Ring {
    pub(crate) descriptors: Descriptors,
    /// Buffer of each descriptor; initialised exactly for the posted ones.
    pub(crate) buffers: Box<[MaybeUninit<Buffer>]>,
    /// Counters of completed (`head`) and posted (`tail`) descriptors. They never wrap in practice; modulo the
    /// ring's size they are indices.
    pub(crate) head: usize,
    pub(crate) tail: usize,
    pub(crate) doorbell: Doorbell,
    /// Head register, RDH or TDH.
    head_register: Reg<RW>,
    /// Control register, RXDCTL or TXDCTL.
    pub(crate) control: Reg<RW>,
    pub(crate) device: Arc<Device>,
}

impl Ring {
    /// Writes base and length of a ring to a stopped queue. No descriptor is posted yet.
    ///
    /// `descriptors.len()` is a power of two.
    ///
    /// # Safety
    /// `registers` are those of Rx queues or those of Tx queues, whose descriptors have the size of `Descriptor`. The
    /// array is mapped for the card.
    pub(crate) unsafe fn new(
        device: &Arc<Device>,
        descriptors: Descriptors,
        registers: &RingRegisters,
        queue: usize,
    ) -> Self {
        let device = device.clone();
        let base = registers.base.map(|row| row.at(queue));
        let tail = registers.tail.at(queue);
        let head_register = registers.head.at(queue);
        // SAFETY: the array is mapped for the card by this function's contract. The new `Ring` owns it until
        // `drop` has stopped the queue, or leaks its region if the queue does not stop.
        unsafe { device.window.write_dma(base, descriptors.iova()) };
        device.window.write(registers.len.at(queue), size_of_val(&*descriptors) as u32);
        device.window.write(head_register, 0);
        device.window.write(tail, 0);
        let buffers = descriptors.iter().map(|_| MaybeUninit::uninit()).collect();
        let doorbell = device.window.doorbell(tail);
        let control = registers.control.at(queue);
        Self { buffers, descriptors, head: 0, tail: 0, doorbell, head_register, control, device }
    }

    /// Starts the queue and waits until the card reports it as enabled (8.2.3.8.6, 8.2.3.9.10).
    pub(crate) fn start(&self) -> Result<(), Error> {
        self.device.window.set(self.control, ENABLE);
        self.device.wait(self.control, ENABLE, ENABLE)
    }

    pub(crate) fn posted(&self) -> usize {
        self.tail - self.head
    }

    /// Returns how many descriptors can be posted. One always stays free, because a tail equal to the head
    /// means an empty ring (7.1.9, 7.2.3.4).
    pub(crate) fn room(&self) -> usize {
        self.buffers.len() - 1 - self.posted()
    }

    pub(crate) fn index(&self, count: usize) -> usize {
        count & (self.buffers.len() - 1)
    }

    /// Returns up to `n` descriptors from count `from` on, and the places of their buffers; stops where the ring wraps.
    #[inline(always)]
    pub(crate) fn run(&mut self, from: usize, n: usize) -> (&[Descriptor], &mut [MaybeUninit<Buffer>]) {
        let start = self.index(from);
        let run = start..self.buffers.len().min(start + n);
        // SAFETY: `start < buffers.len()`, because `index` masks with the length minus 1; the end is at least
        // `start` and at most `buffers.len()`. `descriptors` has the same length, as `new` makes one place for
        // each descriptor.
        unsafe { (self.descriptors.get_unchecked(run.clone()), self.buffers.get_unchecked_mut(run)) }
    }

    /// Returns the descriptors and the places of their buffers, for a loop over single ones.
    #[inline(always)]
    pub(crate) fn places(&mut self) -> Places<'_> {
        Places { descriptors: &self.descriptors, buffers: &mut self.buffers }
    }

    /// Posts one descriptor with its buffer.
    ///
    /// # Panics
    /// If the ring is full.
    pub(crate) fn post(&mut self, words: [u64; 2], buffer: Buffer) {
        assert!(self.room() > 0);
        let index = self.index(self.tail);
        self.descriptors[index][0].store(words[0], Ordering::Relaxed);
        self.descriptors[index][1].store(words[1], Ordering::Relaxed);
        self.buffers[index].write(buffer);
        self.tail += 1;
    }

    /// Asks the card to report when it has sent the frame that ends with the descriptor of count `last`.
    #[inline(always)]
    pub(crate) fn request_report(&self, last: usize) {
        let word = &self.descriptors[self.index(last)][1];
        word.store(word.load(Ordering::Relaxed) | TX_RS, Ordering::Relaxed);
    }

    /// Takes the oldest posted buffer out of the ring.
    ///
    /// # Panics
    /// If none is posted.
    pub(crate) fn pop(&mut self) -> Buffer {
        assert!(self.posted() > 0);
        let index = self.index(self.head);
        self.head += 1;
        // SAFETY: the assertion above says that the descriptor at the old head was posted, so its buffer is
        // initialised. The head has moved past it, so it is not read again before another buffer is written
        // there.
        unsafe { self.buffers[index].assume_init_read() }
    }

    /// Rings the doorbell if descriptors were posted since the tail was `before`.
    pub(crate) fn publish(&self, before: usize) {
        if self.tail != before {
            self.doorbell.ring(self.index(self.tail) as u32);
        }
    }

    /// Makes a stopped queue start over at the first descriptor.
    pub(crate) fn rewind(&mut self) {
        (self.head, self.tail) = (0, 0);
        self.device.window.write(self.head_register, 0);
        self.doorbell.ring(0);
    }

    /// Disables the queue, waits until the card reports it as stopped, and drops the posted buffers.
    ///
    /// # Errors
    /// If the card does not stop within a second, or is gone. For one that is gone nothing is waited, because a worker that drops
    /// its queue has other ports to serve.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        // Registers of a card that is gone read as ones; this one has reserved bits that are always 0.
        if self.device.window.read(self.control) == u32::MAX {
            return Err(Error::Gone("the card is gone: its registers read as ones".into()));
        }
        self.device.window.clear(self.control, ENABLE);
        self.device.wait(self.control, ENABLE, 0)?;
        while self.posted() > 0 {
            drop(self.pop());
        }
        Ok(())
    }
}

/// The descriptors of a ring and the places of their buffers, by count.
pub(crate) struct Places<'a> {
    descriptors: &'a [Descriptor],
    /// Places of buffers: as many as descriptors, a power of two.
    buffers: &'a mut [MaybeUninit<Buffer>],
}

impl Places<'_> {
    /// Returns the descriptor of a count, and the place of its buffer.
    #[inline(always)]
    pub(crate) fn at(&mut self, count: usize) -> (&Descriptor, &mut MaybeUninit<Buffer>) {
        let index = count & (self.buffers.len() - 1);
        // SAFETY: a number masked with a length minus 1 is below the length, which is not 0, and `Ring::new` makes one place
        // for each descriptor.
        unsafe { (self.descriptors.get_unchecked(index), self.buffers.get_unchecked_mut(index)) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A card that does not stop may still access descriptors and buffers, so their memory is never freed.
        self.stop().unwrap_or_else(|_| self.descriptors.leak());
    }
}
