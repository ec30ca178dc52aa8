//! Rx rings (7.1.9): advanced descriptors with one buffer each (7.1.6).

use std::sync::atomic::Ordering;

use ringpass_memory::DmaArray;
use ringpass_registers::ixgbe::{bits::*, descriptor::*};

use super::bits::*;
use super::rss::Class;
use super::tx::BURST;
use crate::dma::{Descriptor, DmaMap, Hint, Intent, prefetch_descriptors};

/// Queues that the model has: those whose registers lie in the first block.
pub(super) const QUEUES: usize = 64;

/// The card's side of an Rx ring.
#[derive(Default)]
pub(super) struct RxRing {
    enabled: bool,
    /// `None` where the queue is enabled on memory that the card cannot use.
    memory: Option<DmaArray<Descriptor>>,
    pub(super) head: usize,
    /// Descriptors from the head on that the driver has posted.
    ready: usize,
    /// 0 where SRRCTL says something that the model does not have.
    buffer_size: usize,
    drop_enable: bool,
    hint: Hint,
    pub(super) tally: Tally,
}

/// What became of the frames of a queue since they were last counted.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) no_descriptor: u64,
    pub(super) disabled: u64,
    pub(super) faults: u64,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Done,
    NoDescriptor,
    /// The driver's descriptors or ring are such that the frame is lost.
    Fault,
}

impl RxRing {
    /// RXDCTL.ENABLE was set: the ring starts at its first descriptor.
    pub(super) fn enable(&mut self, memory: Option<DmaArray<Descriptor>>) {
        (self.enabled, self.memory, self.head, self.ready) = (true, memory, 0, 0);
    }

    pub(super) fn disable(&mut self) {
        (self.enabled, self.memory) = (false, None);
    }

    /// SRRCTL was written.
    pub(super) fn configure(&mut self, control: u32) {
        let supported = control & SRRCTL_DESCTYPE_MASK == SRRCTL_DESCTYPE_ADV_ONEBUF;
        let size = ((control & SRRCTL_BSIZEPACKET) as usize).min(16) << 10;
        self.buffer_size = if supported { size } else { 0 };
        self.drop_enable = control & SRRCTL_DROP_EN != 0;
    }

    /// Takes over the driver's tail, and brings the first descriptors into the cache: none that the driver still
    /// writes. A tail outside the ring offers none.
    #[inline]
    pub(super) fn set_tail(&mut self, tail: u32) {
        let Some(ring) = &self.memory else { return };
        let (len, tail) = (ring.len(), tail as usize);
        self.ready = if tail >= len { 0 } else { (tail + len - self.head) % len };
        prefetch_descriptors(ring, self.head, self.ready.min(BURST), Intent::Write);
    }

    /// Takes a frame, or drops it; `false` if it has to wait for a descriptor. Without mastering, there is none.
    #[inline]
    pub(super) fn place(&mut self, frame: &[u8], class: Class, dma: &DmaMap, masters: bool) -> bool {
        if !self.enabled {
            self.tally.disabled += 1;
            return true;
        }
        match if masters { self.deliver(frame, class, dma) } else { Delivery::NoDescriptor } {
            Delivery::Done => {
                self.tally.packets += 1;
                self.tally.bytes += frame.len() as u64;
            }
            Delivery::Fault => self.tally.faults += 1,
            Delivery::NoDescriptor if self.drop_enable => self.tally.no_descriptor += 1,
            Delivery::NoDescriptor => return false,
        }
        true
    }

    /// Writes a frame to the buffers of as many descriptors as it needs, and the descriptors back.
    #[inline]
    fn deliver(&mut self, frame: &[u8], class: Class, dma: &DmaMap) -> Delivery {
        if frame.len() > self.buffer_size {
            return self.deliver_parts(frame, class, dma);
        }
        if self.ready == 0 {
            return if self.memory.is_some() { Delivery::NoDescriptor } else { Delivery::Fault };
        }
        self.fill(frame, RX_DD | RX_EOP | class.status, class, dma)
    }

    /// A frame that is longer than a buffer.
    #[cold]
    fn deliver_parts(&mut self, frame: &[u8], class: Class, dma: &DmaMap) -> Delivery {
        let len = self.memory.as_ref().map_or(0, |ring| ring.len());
        if self.buffer_size == 0 || frame.len().div_ceil(self.buffer_size) >= len {
            return Delivery::Fault;
        }
        if frame.len().div_ceil(self.buffer_size) > self.ready {
            return Delivery::NoDescriptor;
        }
        let mut parts = frame.chunks(self.buffer_size).peekable();
        let mut delivery = Delivery::Done;
        while delivery == Delivery::Done
            && let Some(part) = parts.next()
        {
            let end = if parts.peek().is_none() { RX_EOP | class.status } else { 0 };
            delivery = self.fill(part, RX_DD | end, class, dma);
        }
        delivery
    }

    /// Writes to the buffer of the next descriptor, and the descriptor back.
    #[inline]
    fn fill(&mut self, part: &[u8], status: u64, class: Class, dma: &DmaMap) -> Delivery {
        let Some(ring) = &self.memory else { return Delivery::Fault };
        let Some(Descriptor([first, second])) = ring.get(self.head) else { return Delivery::Fault };
        self.head = if self.head + 1 == ring.len() { 0 } else { self.head + 1 };
        self.ready -= 1;
        let written = dma.write(first.load(Ordering::Relaxed), part, &mut self.hint);
        first.store(class.word, Ordering::Relaxed);
        // Release: a driver that sees DD sees the frame and the other half of the descriptor.
        if written {
            second.store(status | (part.len() as u64) << RX_LENGTH_SHIFT, Ordering::Release);
            Delivery::Done
        } else {
            // The frame ends here, as one with an error.
            second.store(RX_DD | RX_EOP | RX_RXE, Ordering::Release);
            Delivery::Fault
        }
    }
}
