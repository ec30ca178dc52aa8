//! Rx rings (7.1.9), and the write-back to their descriptors and buffers: advanced descriptors with one buffer
//! (7.1.6), with header split (7.1.10), and legacy ones (7.1.5).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Access, DmaMap, FrameBatch, LookupHint};
use ringpass_pci::registers::ixgbe::{bits::*, descriptor::*};

use super::bits::*;
use super::liar::Liar;
use super::lies::Lie;
use super::limits::BURST;
use super::rss::Class;
use crate::dma::{Descriptor, Ring};

/// Prefetch distance of buffers, in frames.
const AHEAD: usize = 4;

/// Descriptor format, from SRRCTL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    /// A value that the NIC does not define.
    #[default]
    Reserved,
    Legacy,
    OneBuffer,
    /// Header split: a header that was recognised goes to a buffer of its own.
    Split,
    /// Header split always: a frame whose header was not recognised also begins in the header buffer.
    SplitAlways,
}

/// The NIC's side of an Rx ring.
#[derive(Default)]
pub(super) struct RxRing {
    enabled: bool,
    /// `None` if the queue is enabled but its ring is not in mapped memory.
    memory: Option<Ring>,
    pub(super) head: usize,
    /// Descriptors from the head on that the driver has posted.
    ready: usize,
    /// Longest frame for the fast path: it fits one buffer of an advanced descriptor and is written unchanged.
    whole: usize,
    format: Format,
    buffer_size: usize,
    header_size: usize,
    /// Longest frame that the queue accepts, in bytes.
    limit: usize,
    drop_enable: bool,
    /// Write-backs of the descriptors before the head that are still to be done: those of a burst are written
    /// together, because a polling driver takes the line of descriptors away after each.
    pending: Vec<[u64; 2]>,
    hint: LookupHint,
    pub(super) tally: Tally,
    pub(super) liar: Option<Arc<Liar>>,
    /// The descriptor after the next one has been written back already (a lie).
    next_is_taken: bool,
    /// Descriptor whose DD bit is to be cleared again (a lie).
    to_clear: Option<usize>,
}

/// Results of the queue's frames since they were last counted.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) no_descriptor: u64,
    pub(super) disabled: u64,
    pub(super) faults: u64,
}

/// The part of a frame that goes to a header buffer.
#[derive(Clone, Copy, Default)]
struct Header<'a> {
    bytes: &'a [u8],
    /// Bits for the two halves of the write-back.
    word: u64,
    status: u64,
}

/// Result of a frame's delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Done,
    NoDescriptor,
    /// The frame is lost because of the driver's descriptors or ring.
    Fault,
}

impl RxRing {
    /// Starts the ring at its first descriptor, when RXDCTL.ENABLE was set.
    pub(super) fn enable(&mut self, memory: Option<Ring>) {
        (self.enabled, self.memory, self.head, self.ready) = (true, memory, 0, 0);
        (self.next_is_taken, self.to_clear) = (false, None);
    }

    /// Continues at the same position in `memory`, after the NIC's memory has changed.
    pub(super) fn attach(&mut self, memory: Option<Ring>) {
        (self.memory, self.ready) = (memory, 0);
    }

    pub(super) fn memory(&self) -> Option<&Ring> {
        self.memory.as_ref()
    }

    pub(super) fn disable(&mut self) {
        (self.enabled, self.memory) = (false, None);
    }

    /// Applies SRRCTL and RXDCTL after a write.
    pub(super) fn configure(&mut self, split_control: u32, control: u32) {
        self.format = match split_control & SRRCTL_DESCTYPE_MASK {
            SRRCTL_DESCTYPE_LEGACY => Format::Legacy,
            SRRCTL_DESCTYPE_ADV_ONEBUF => Format::OneBuffer,
            SRRCTL_DESCTYPE_SPLIT => Format::Split,
            SRRCTL_DESCTYPE_SPLIT_ALWAYS => Format::SplitAlways,
            _ => Format::Reserved,
        };
        self.buffer_size = ((split_control & SRRCTL_BSIZEPACKET) as usize).min(16) << 10;
        self.header_size = ((split_control >> SRRCTL_BSIZEHEADER_SHIFT & 0x3f) as usize).min(16) << 6;
        self.limit = if control & RXDCTL_RLPML_EN != 0 { (control & RXDCTL_RLPML_MASK) as usize } else { usize::MAX };
        let is_plain = self.format == Format::OneBuffer && self.liar.is_none();
        self.whole = if is_plain { self.buffer_size.min(self.limit) } else { 0 };
        self.drop_enable = split_control & SRRCTL_DROP_EN != 0;
    }

    /// Returns whether header split is on.
    #[inline]
    pub(super) fn splits(&self) -> bool {
        matches!(self.format, Format::Split | Format::SplitAlways)
    }

    /// Takes over the driver's tail, and prefetches the first descriptors, but none that the driver still
    /// writes. A tail outside the ring posts no descriptors.
    #[inline]
    pub(super) fn set_tail(&mut self, tail: u32) {
        let Some(ring) = &self.memory else { return };
        self.ready = ring.distance(self.head, tail as usize);
        ring.prefetch(self.head, self.ready.min(BURST), Access::ReadWrite);
    }

    /// Delivers or drops a frame; returns `false` if it has to wait for a descriptor. Without bus mastering
    /// there are no descriptors. The driver sees the frame after the next [`write_back`](Self::write_back).
    #[inline]
    pub(super) fn place(&mut self, frame: &[u8], class: Class, dma: &DmaMap, dma_allowed: bool) -> bool {
        if !self.enabled {
            self.tally.disabled += 1;
            return true;
        }
        match if dma_allowed { self.deliver(frame, class, dma) } else { Delivery::NoDescriptor } {
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

    /// Fast path: delivers the frames of a batch from number `start` on, one for each of `classes`, as
    /// [`place`](Self::place) does, up to the first that does not fit into the next buffer. Returns how many it
    /// delivered.
    #[inline]
    pub(super) fn place_common(&mut self, frames: &FrameBatch, start: usize, classes: &[Class], dma: &DmaMap) -> usize {
        let Some(ring) = self.memory.as_ref().filter(|_| self.enabled) else { return 0 };
        let count = classes.len().min(self.ready);
        let earlier = self.pending.len();
        self.pending.resize(earlier + count, [0; 2]);
        let pending = &mut self.pending[earlier..];
        let mut head = self.head;
        let mut placed = 0;
        let mut bytes = 0;
        let (whole, hint) = (self.whole, &mut self.hint);
        let prefetch = |descriptor: &Descriptor, hint: &mut LookupHint| {
            dma.prefetch(descriptor[0].load(Ordering::Relaxed), Access::ReadWrite, hint);
        };
        'ring: while placed < count {
            let descriptors = ring.contiguous(head, count - placed);
            descriptors.iter().take(AHEAD).for_each(|descriptor| prefetch(descriptor, hint));
            let frames = frames.range(start + placed..start + placed + descriptors.len());
            let frames = frames.zip(&classes[placed..]).zip(&mut pending[placed..]);
            for (i, (descriptor, ((frame, class), pending))) in descriptors.iter().zip(frames).enumerate() {
                descriptors.get(i + AHEAD).into_iter().for_each(|descriptor| prefetch(descriptor, hint));
                if frame.len() > whole || !dma.write(descriptor[0].load(Ordering::Relaxed), frame, hint) {
                    break 'ring;
                }
                let len = frame.len() as u64;
                *pending = [class.word, RX_DD | RX_EOP | class.status | len << RX_LENGTH_SHIFT];
                (placed, bytes) = (placed + 1, bytes + len);
            }
            head = (head + descriptors.len()) % ring.len();
        }
        self.pending.truncate(earlier + placed);
        self.head = (self.head + placed) % ring.len();
        self.ready -= placed;
        self.tally.packets += placed as u64;
        self.tally.bytes += bytes;
        placed
    }

    /// Writes back the descriptors of all frames delivered since the last call, in order.
    pub(super) fn write_back(&mut self) {
        let Some(ring) = &self.memory else { return self.pending.clear() };
        let len = ring.len();
        let mut at = (self.head + len - self.pending.len()) % len;
        let mut pending = self.pending.as_slice();
        while !pending.is_empty() {
            let descriptors = ring.contiguous(at, pending.len());
            if descriptors.is_empty() {
                break;
            }
            for ([first, second], &[first_half, second_half]) in descriptors.iter().zip(pending) {
                first.store(first_half, Ordering::Relaxed);
                // Release: a driver that sees DD also sees the frame and the other half of the descriptor.
                second.store(second_half, Ordering::Release);
            }
            pending = &pending[descriptors.len()..];
            at = (at + descriptors.len()) % len;
        }
        self.pending.clear();
    }

    /// Writes a frame to the buffers of as many descriptors as it needs.
    #[inline(always)]
    fn deliver(&mut self, frame: &[u8], class: Class, dma: &DmaMap) -> Delivery {
        if frame.len() > self.whole {
            return self.deliver_parts(frame, class, dma);
        }
        if self.ready == 0 {
            return if self.memory.is_some() { Delivery::NoDescriptor } else { Delivery::Fault };
        }
        self.fill(frame, RX_DD | RX_EOP | class.status, class, dma)
    }

    /// Delivers a frame that is longer than a buffer, or that needs another descriptor format.
    #[cold]
    fn deliver_parts(&mut self, frame: &[u8], class: Class, dma: &DmaMap) -> Delivery {
        if let Some(liar) = self.liar.clone() {
            // Some lies are about descriptors that were written back before, or are yet to be.
            self.write_back();
            let delivery = self.deliver_lying(frame, class, dma, &liar);
            self.write_back();
            return delivery;
        }
        self.deliver_honestly(frame, class, dma)
    }

    fn deliver_honestly(&mut self, frame: &[u8], class: Class, dma: &DmaMap) -> Delivery {
        let len = self.memory.as_ref().map_or(0, |ring| ring.len());
        let (header, rest) = self.split(frame, class);
        let descriptors = rest.len().div_ceil(self.buffer_size.max(1)).max(1);
        let lost = self.format == Format::Reserved || self.buffer_size == 0 || frame.len() > self.limit;
        if lost || descriptors >= len {
            return Delivery::Fault;
        }
        if descriptors + usize::from(self.next_is_taken) > self.ready {
            return Delivery::NoDescriptor;
        }
        let mut delivery = Delivery::Done;
        for i in 0..descriptors {
            let start = (i * self.buffer_size).min(rest.len());
            let part = &rest[start..rest.len().min(start + self.buffer_size)];
            let end = if i + 1 == descriptors { RX_EOP | class.status } else { 0 };
            delivery = match self.format {
                Format::Legacy => self.fill_legacy(part, RX_DD | end, class, dma),
                Format::OneBuffer | Format::Reserved => self.fill_next(part, RX_DD | end, class, dma),
                Format::Split | Format::SplitAlways => {
                    let header = if i == 0 { header } else { Header::default() };
                    self.fill_split(header, part, RX_DD | end, class, dma)
                }
            };
            self.pass_over_taken();
            if delivery != Delivery::Done {
                break;
            }
        }
        delivery
    }

    /// Delivers a frame for a NIC that lies; the lies assume advanced descriptors with one buffer.
    fn deliver_lying(&mut self, frame: &[u8], class: Class, dma: &DmaMap, liar: &Liar) -> Delivery {
        let lie = liar.of_received();
        if let Some(address) = liar.outside()
            && !dma.write(address, &frame[..frame.len().min(16)], &mut LookupHint::default())
        {
            self.tally.faults += 1;
        }
        if lie == Some(Lie::RxStuck) {
            return Delivery::NoDescriptor;
        }
        if self.ready < 2 || self.buffer_size == 0 || frame.len() > self.buffer_size {
            return self.deliver_honestly(frame, class, dma);
        }
        let at = self.head;
        let (end, len) = (RX_DD | RX_EOP | class.status, frame.len() as u64);
        let delivery = match lie {
            Some(Lie::LengthLong) => self.fill_as(frame, end | 0xffff << RX_LENGTH_SHIFT, class, dma),
            Some(Lie::LengthZero) => self.fill_as(frame, end, class, dma),
            Some(Lie::NoData) => self.fill_as(&[], end | len << RX_LENGTH_SHIFT, class, dma),
            Some(Lie::NoEop) => self.fill_as(frame, end & !RX_EOP | len << RX_LENGTH_SHIFT, class, dma),
            Some(Lie::OutOfOrder) if !self.next_is_taken => {
                let (head, ready) = (self.head, self.ready);
                self.advance();
                let delivery = self.fill_as(frame, end | len << RX_LENGTH_SHIFT, class, dma);
                (self.head, self.ready, self.next_is_taken) = (head, ready, true);
                return delivery;
            }
            _ => self.deliver_honestly(frame, class, dma),
        };
        if let Some(at) = self.to_clear.take()
            && let Some([_, second]) = self.memory.as_ref().and_then(|ring| ring.get(at))
        {
            second.store(second.load(Ordering::Relaxed) & !RX_DD, Ordering::Release);
        }
        self.to_clear = (lie == Some(Lie::DdCleared)).then_some(at);
        delivery
    }

    /// Writes to the buffer of the next descriptor, and writes the given second half back (a lie).
    fn fill_as(&mut self, part: &[u8], second_half: u64, class: Class, dma: &DmaMap) -> Delivery {
        let Some(ring) = &self.memory else { return Delivery::Fault };
        let Some([first, second]) = ring.get(self.head) else { return Delivery::Fault };
        if !part.is_empty() && !dma.write(first.load(Ordering::Relaxed), part, &mut self.hint) {
            return Delivery::Fault;
        }
        first.store(class.word, Ordering::Relaxed);
        second.store(second_half, Ordering::Release);
        self.advance();
        self.pass_over_taken();
        Delivery::Done
    }

    fn advance(&mut self) {
        let len = self.memory.as_ref().map_or(1, |ring| ring.len());
        self.head = if self.head + 1 == len { 0 } else { self.head + 1 };
        self.ready -= 1;
    }

    fn pass_over_taken(&mut self) {
        if std::mem::take(&mut self.next_is_taken) {
            self.write_back();
            self.advance();
        }
    }

    /// Splits a frame into the parts for the header buffer and for the packet buffer (7.1.10.2).
    fn split<'a>(&self, frame: &'a [u8], class: Class) -> (Header<'a>, &'a [u8]) {
        let found = class.header as usize;
        let always = self.format == Format::SplitAlways;
        let at = match found {
            1.. if found <= self.header_size => found,
            _ if always => frame.len().min(self.header_size),
            _ => 0,
        };
        let word = match found {
            _ if !self.splits() => 0,
            0 => (at as u64) << RX_HDR_LEN_SHIFT,
            found => RX_SPH | (found as u64 & 0x3ff) << RX_HDR_LEN_SHIFT,
        };
        let status = if found > self.header_size { RX_HBO } else { 0 };
        let (bytes, rest) = frame.split_at(if self.splits() { at } else { 0 });
        (Header { bytes, word, status }, rest)
    }

    /// Writes a header and what follows it to the two buffers of the next descriptor, and writes the descriptor
    /// back.
    fn fill_split(&mut self, header: Header, part: &[u8], status: u64, class: Class, dma: &DmaMap) -> Delivery {
        let Some(ring) = &self.memory else { return Delivery::Fault };
        let Some([_, second]) = ring.get(self.head) else { return Delivery::Fault };
        let written = dma.write(second.load(Ordering::Relaxed) & !1, header.bytes, &mut self.hint);
        if !written && !header.bytes.is_empty() {
            // The frame ends here with an error.
            self.fill_next(&[], RX_DD | RX_EOP | RX_RXE, class, dma);
            return Delivery::Fault;
        }
        let class = Class { word: class.word | header.word, ..class };
        self.fill_next(part, status | header.status, class, dma)
    }

    /// Writes to the buffer of the next descriptor, and writes the descriptor back in legacy format (7.1.5).
    fn fill_legacy(&mut self, part: &[u8], status: u64, class: Class, dma: &DmaMap) -> Delivery {
        let Some(ring) = &self.memory else { return Delivery::Fault };
        let Some([address, second]) = ring.get(self.head) else { return Delivery::Fault };
        self.head = if self.head + 1 == ring.len() { 0 } else { self.head + 1 };
        self.ready -= 1;
        let written = part.is_empty() || dma.write(address.load(Ordering::Relaxed), part, &mut self.hint);
        // Checksum and MAC errors, in the order of the legacy format.
        let errors = status >> 24 & 0xc0 | u64::from(status & RX_RXE != 0);
        let tag = status >> RX_VLAN_SHIFT << RX_VLAN_SHIFT;
        let back = part.len() as u64 | class.word >> 48 << 16 | (status & 0xff) << 32 | errors << 40 | tag;
        second.store(if written { back } else { (RX_DD | RX_EOP) << 32 | 1 << 40 }, Ordering::Release);
        if written { Delivery::Done } else { Delivery::Fault }
    }

    /// Calls `fill`, out of line, for all but the fast path.
    #[inline(never)]
    fn fill_next(&mut self, part: &[u8], status: u64, class: Class, dma: &DmaMap) -> Delivery {
        self.fill(part, status, class, dma)
    }

    /// Writes to the buffer of the next descriptor, whose write-back is then pending.
    #[inline(always)]
    fn fill(&mut self, part: &[u8], status: u64, class: Class, dma: &DmaMap) -> Delivery {
        let Some(ring) = &self.memory else { return Delivery::Fault };
        let Some([first, _]) = ring.get(self.head) else { return Delivery::Fault };
        self.head = if self.head + 1 == ring.len() { 0 } else { self.head + 1 };
        self.ready -= 1;
        if self.ready > AHEAD
            && let soon = self.head + AHEAD
            && let Some([soon, _]) = ring.get(if soon < ring.len() { soon } else { soon - ring.len() })
        {
            dma.prefetch(soon.load(Ordering::Relaxed), Access::ReadWrite, &mut self.hint);
        }
        let written = dma.write(first.load(Ordering::Relaxed), part, &mut self.hint);
        // A frame whose buffer is not mapped ends here with an error.
        let (delivery, second_half) = if written {
            (Delivery::Done, status | (part.len() as u64) << RX_LENGTH_SHIFT)
        } else {
            (Delivery::Fault, RX_DD | RX_EOP | RX_RXE)
        };
        self.pending.push([class.word, second_half]);
        delivery
    }
}
