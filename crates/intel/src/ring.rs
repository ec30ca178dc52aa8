//! A descriptor ring and the buffers that lie behind it.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ringpass_memory::{Buffer, DmaArray};
use ringpass_port::Error;
use ringpass_registers::ixgbe::bits::{RXDCTL_ENABLE, TXDCTL_ENABLE};
use ringpass_registers::{DMA, Doorbell, RW, Reg};

use crate::device::Device;

/// A descriptor: two words that driver and card both access.
pub type Descriptor = [AtomicU64; 2];
/// The card's side of a ring.
pub type Descriptors = DmaArray<Descriptor>;

/// In the control register of either kind of queue.
const ENABLE: u32 = RXDCTL_ENABLE;
const _: () = assert!(ENABLE == TXDCTL_ENABLE);

/// A ring whose descriptors `head..tail` are posted: the card has them, and their buffers are in `buffers`.
pub struct Ring {
    pub(crate) descriptors: Descriptors,
    /// Initialised exactly where posted.
    pub(crate) buffers: Box<[MaybeUninit<Buffer>]>,
    /// These count on for ever; modulo the ring's size they are indices.
    pub(crate) head: usize,
    pub(crate) tail: usize,
    pub(crate) doorbell: Doorbell,
    /// RDH or TDH, and RXDCTL or TXDCTL.
    pub(crate) registers: [Reg<RW>; 2],
    pub(crate) device: Arc<Device>,
}

impl Ring {
    /// A ring of a power of two descriptors, with none posted, for a queue that stands still: base and length. Takes the
    /// registers for base (low, high), length, head, tail and control, which Rx and Tx queues of all cards have.
    ///
    /// # Safety
    /// The registers are those of one queue, whose descriptors are of this size. The array is mapped for the card.
    pub unsafe fn new(device: &Arc<Device>, descriptors: Descriptors, base: [Reg<DMA>; 2], rest: [Reg<RW>; 4]) -> Self {
        let (device, [len, head, tail, control]) = (device.clone(), rest);
        // SAFETY: the array is mapped for the card, as the caller promises, and is kept until `drop` has stopped the queue.
        unsafe { device.window.write_dma(base, descriptors.iova()) };
        device.window.write(len, size_of_val(&*descriptors) as u32);
        device.window.write(head, 0);
        device.window.write(tail, 0);
        let buffers = descriptors.iter().map(|_| MaybeUninit::uninit()).collect();
        let (doorbell, registers) = (device.window.doorbell(tail), [head, control]);
        Self { buffers, descriptors, head: 0, tail: 0, doorbell, registers, device }
    }

    /// Starts the queue and waits until the card says so (8.2.3.8.6, 8.2.3.9.10).
    pub(crate) fn start(&self) -> Result<(), Error> {
        self.device.window.set(self.registers[1], ENABLE);
        self.device.wait(self.registers[1], ENABLE, ENABLE)
    }

    pub(crate) fn posted(&self) -> usize {
        self.tail - self.head
    }

    /// One descriptor always stays free: a tail that meets the head would mean an empty ring (7.1.9, 7.2.3.4).
    pub(crate) fn room(&self) -> usize {
        self.buffers.len() - 1 - self.posted()
    }

    pub(crate) fn index(&self, count: usize) -> usize {
        count & (self.buffers.len() - 1)
    }

    /// Up to `n` descriptors from there, as far as they are in one piece, each with the place of its buffer.
    pub(crate) fn run(
        &mut self,
        from: usize,
        n: usize,
    ) -> impl Iterator<Item = (&Descriptor, &mut MaybeUninit<Buffer>)> {
        let start = self.index(from);
        let run = start..self.buffers.len().min(start + n);
        // SAFETY: the run lies inside the ring, and there are as many places as descriptors.
        let (descriptors, places) =
            unsafe { (self.descriptors.get_unchecked(run.clone()), self.buffers.get_unchecked_mut(run)) };
        descriptors.iter().zip(places)
    }

    /// Takes the oldest buffer.
    ///
    /// # Panics
    /// If none is posted.
    pub(crate) fn pop(&mut self) -> Buffer {
        assert!(self.posted() > 0);
        let index = self.index(self.head);
        self.head += 1;
        // SAFETY: it was posted, and is no longer.
        unsafe { self.buffers[index].assume_init_read() }
    }

    /// Tells the card of what was posted since the tail was `before`.
    pub(crate) fn publish(&self, before: usize) {
        if self.tail != before {
            self.doorbell.ring(self.index(self.tail) as u32);
        }
    }

    /// Stops the queue and drops the buffers that are posted, when the card says that it has stopped.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        self.device.window.clear(self.registers[1], ENABLE);
        self.device.wait(self.registers[1], ENABLE, 0)?;
        while self.posted() > 0 {
            drop(self.pop());
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A card that does not stop may still use the memory: then that is never given back.
        self.stop().unwrap_or_else(|_| self.descriptors.leak());
    }
}
