//! Tx rings (7.2.3): advanced and legacy descriptors over any number of buffers, written back by DD or by head.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Cache, Mempool, MempoolConfig, Packet};
use ringpass_registers::ixgbe::{bits::*, descriptor::*};

use super::bits::*;
use super::decode::Settings;
use super::liar::Liar;
use super::lies::Lie;
use super::offload::{Offload, complete, copy_tagged, insert_legacy, tag};
use super::segment::Segments;
use super::stats::Counters;
use crate::dma::{Descriptor, DmaMap, Hint, Intent, Ring, prefetch_descriptors};

/// Queues of the card.
pub(super) const QUEUES: usize = 128;
/// Packets that a ring sends in one step.
pub(super) const BURST: usize = 64;
/// Descriptors that one step looks at: contexts and malformed ones make no packet.
const DESCRIPTORS: usize = 4 * BURST;
/// Longest frame that the card sends, with its CRC (7.2.1.1).
pub(super) const LONGEST: usize = 15_872;
/// Longest packet to be cut: what PAYLEN can say, and headers.
const LONGEST_TO_CUT: usize = (1 << 18) + 0x3ff;
/// Descriptors of a frame that is not to be cut, at most (7.2.1.1).
const FRAME_DESCRIPTORS: usize = 40;

/// The card's own memory for frames on their way to the wire.
pub(super) struct Buffers {
    cache: Cache,
    /// For the frames that are too long for the others.
    jumbo: Mempool,
}

impl Buffers {
    pub(super) fn new() -> Self {
        let pool = |buffers, size| {
            Mempool::new(&MempoolConfig { buffers, size, ..Default::default() })
                .expect("some MiB of ordinary pages for the model's frames")
        };
        Self { cache: pool(2048, 2048).cache(), jumbo: pool(64, LONGEST) }
    }

    #[inline]
    pub(super) fn alloc(&mut self, len: usize) -> Option<Packet> {
        if len > self.cache.pool().buffer_size() {
            return self.jumbo.alloc();
        }
        self.cache.take(1).next()
    }
}

/// The frame whose descriptors are being fetched.
#[derive(Default)]
enum Gather {
    #[default]
    Nothing,
    /// Its bytes so far are in `bytes` of the ring.
    Part(Frame),
    /// The frame is lost; its other descriptors are skipped.
    Lost,
}

/// What the first descriptor of a frame says.
#[derive(Clone, Copy)]
struct Frame {
    command: u64,
    descriptors: usize,
}

impl Frame {
    fn is_legacy(self) -> bool {
        self.command & TX_DEXT == 0
    }

    fn is_cut(self) -> bool {
        !self.is_legacy() && self.command & TX_TSE != 0
    }
}

/// The card's side of a Tx ring.
#[derive(Default)]
pub(super) struct TxRing {
    memory: Option<Ring>,
    pub(super) head: usize,
    /// Descriptors from the head on that the driver has posted.
    ready: usize,
    /// The driver has been told of sent frames since this was last looked at.
    pub(super) reported: bool,
    /// Where the head is written to, instead of DD (7.2.3.5.2).
    write_back: Option<u64>,
    gather: Gather,
    bytes: Vec<u8>,
    /// The two contexts (7.2.3.2.3).
    contexts: [Offload; 2],
    /// The packet in `bytes`, as long as not all of its segments are sent.
    segments: Option<Segments>,
    hint: Hint,
    write_back_hint: Hint,
    pub(super) liar: Option<Arc<Liar>>,
}

/// What a ring needs of the card.
pub(super) struct Context<'a> {
    pub(super) dma: &'a DmaMap,
    pub(super) settings: &'a Settings,
    pub(super) buffers: &'a mut Buffers,
    pub(super) counters: &'a mut Counters,
    /// Where a segment gets its headers.
    pub(super) segment: &'a mut Vec<u8>,
}

impl TxRing {
    /// TXDCTL.ENABLE was set.
    pub(super) fn enable(&mut self, memory: Option<Ring>, write_back: Option<u64>) {
        *self = Self { memory, write_back, liar: self.liar.take(), ..Self::default() };
    }

    /// The card's memory has changed: the ring goes on in `memory`, where it was.
    pub(super) fn attach(&mut self, memory: Option<Ring>) {
        (self.memory, self.ready) = (memory, 0);
    }

    pub(super) fn memory(&self) -> Option<&Ring> {
        self.memory.as_ref()
    }

    pub(super) fn disable(&mut self) {
        // The head stays to be read.
        *self = Self { head: self.head, liar: self.liar.take(), ..Self::default() };
    }

    /// Takes over the driver's tail, and brings the first descriptors into the cache. A tail outside the ring offers
    /// none.
    #[inline]
    pub(super) fn set_tail(&mut self, tail: u32) {
        let Some(ring) = &self.memory else { return };
        let (len, tail) = (ring.len(), tail as usize);
        self.ready = if tail >= len { 0 } else { (tail + len - self.head) % len };
        prefetch_descriptors(ring, self.head, self.ready.min(BURST), Intent::Read);
    }

    /// Fetches frames from the ring until the burst is full or the ring is empty.
    pub(super) fn fetch(&mut self, out: &mut Burst, context: &mut Context) {
        if self.ready > 0 && self.liar.as_ref().is_some_and(|liar| liar.tells(Lie::TxStuck)) {
            return;
        }
        if let Some(segments) = &mut self.segments {
            if !segments.emit(&self.bytes, out, context) {
                return;
            }
            self.segments = None;
        }
        let Some(ring) = self.memory.take() else { return };
        let len = ring.len();
        let mut reported = None;
        for _ in 0..self.ready.min(DESCRIPTORS) {
            if out.room() == 0 || self.segments.is_some() {
                break;
            }
            let Some(Descriptor([address, command])) = ring.get(self.head) else { break };
            let word = command.load(Ordering::Relaxed);
            self.descriptor(address.load(Ordering::Relaxed), word, out, context);
            self.head = if self.head + 1 == len { 0 } else { self.head + 1 };
            if word & TX_RS != 0 {
                reported = Some(self.head);
                if self.write_back.is_none() {
                    command.store(TX_DD, Ordering::Release);
                }
            }
        }
        self.reported |= reported.is_some();
        if let Some(liar) = &self.liar {
            liar.count(out.len());
            reported = reported.map(|head| liar.head(head, len));
        }
        if let Some((address, head)) = self.write_back.zip(reported)
            && !context.dma.store(address, head as u32, &mut self.write_back_hint)
        {
            context.counters.dma_faults += 1;
        }
        self.memory = Some(ring);
    }

    #[inline]
    fn descriptor(&mut self, address: u64, command: u64, out: &mut Burst, context: &mut Context) {
        const KIND: u64 = TX_DTYP_MASK | TX_DEXT | TX_EOP | TX_IFCS | TX_VLE | TX_TSE | TX_IXSM | TX_TXSM;
        let len = command as usize & 0xffff;
        if command & KIND == TX_DTYP_DATA | TX_DEXT | TX_EOP | TX_IFCS
            && (60..LONGEST - 4).contains(&len)
            && (command >> TX_PAYLEN_SHIFT) as usize == len
            && context.settings.append_crc
            && matches!(self.gather, Gather::Nothing)
        {
            return self.whole(address, len, out, context);
        }
        self.part(address, command, out, context);
    }

    /// The usual descriptor: a frame in one buffer. What `part` does, without its detours.
    #[inline]
    fn whole(&mut self, address: u64, len: usize, out: &mut Burst, context: &mut Context) {
        let Some(mut packet) = context.buffers.alloc(len) else {
            context.counters.tx_no_buffer += 1;
            return;
        };
        packet.set_len(len);
        if context.dma.read_packet(address, &mut packet, &mut self.hint) {
            out.push(packet);
        } else {
            context.counters.dma_faults += 1;
        }
    }

    /// Any descriptor.
    #[inline(never)]
    fn part(&mut self, address: u64, command: u64, out: &mut Burst, context: &mut Context) {
        const KIND: u64 = TX_DTYP_MASK | TX_DEXT;
        if command & KIND == TX_DTYP_CONTEXT | TX_DEXT {
            self.contexts[(command >> TX_IDX_SHIFT & 1) as usize] = Offload::decode(address, command);
            return;
        }
        let len = command as usize & 0xffff;
        if matches!(self.gather, Gather::Nothing) {
            // A legacy descriptor without data only asks for a report.
            if command & TX_DEXT == 0 && len == 0 && command & TX_EOP != 0 {
                return;
            }
            self.bytes.clear();
            self.gather = Gather::Part(Frame { command, descriptors: 0 });
        }
        if let Gather::Part(frame) = &mut self.gather {
            frame.descriptors += 1;
            let limit = if frame.is_cut() { LONGEST_TO_CUT } else { LONGEST - 4 };
            let is_data =
                if frame.is_legacy() { command & TX_DEXT == 0 } else { command & KIND == TX_DTYP_DATA | TX_DEXT };
            let too_many = !frame.is_cut() && frame.descriptors > FRAME_DESCRIPTORS;
            let start = self.bytes.len();
            if !is_data || too_many || start + len > limit || len == 0 && !frame.is_legacy() {
                context.counters.tx_malformed += 1;
                self.gather = Gather::Lost;
            } else {
                self.bytes.resize(start + len, 0);
                if len > 0 && !context.dma.read(address, &mut self.bytes[start..], &mut self.hint) {
                    context.counters.dma_faults += 1;
                    self.gather = Gather::Lost;
                }
            }
        }
        if command & TX_EOP != 0
            && let Gather::Part(frame) = std::mem::take(&mut self.gather)
            && self.finish(frame, out, context).is_none()
        {
            context.counters.tx_malformed += 1;
        }
    }

    /// A frame whose bytes are all there; `None` if it is not what its descriptors say.
    fn finish(&mut self, frame: Frame, out: &mut Burst, context: &mut Context) -> Option<()> {
        let Frame { command, .. } = frame;
        let offload = self.contexts[(command >> TX_IDX_SHIFT & 1) as usize];
        let control = if frame.is_legacy() { (command >> 48) as u16 } else { offload.vlan };
        let tag = (command & TX_VLE != 0).then(|| tag(context.settings, control));
        if frame.is_cut() {
            let mut segments = Segments::new(&self.bytes, command, offload, tag)?;
            if !segments.emit(&self.bytes, out, context) {
                self.segments = Some(segments);
            }
            return Some(());
        }
        if frame.is_legacy() {
            if command & TX_IC != 0 {
                insert_legacy(&mut self.bytes, (command >> 40) as usize & 0xff, (command >> 16) as usize & 0xff)?;
            }
        } else {
            if (command >> TX_PAYLEN_SHIFT) as usize != self.bytes.len() {
                return None;
            }
            offload.fill_checksums(&mut self.bytes, command)?;
        }
        // Room for a tag and for padding.
        let Some(mut packet) = context.buffers.alloc((self.bytes.len() + 4).max(60)) else {
            context.counters.tx_no_buffer += 1;
            return Some(());
        };
        copy_tagged(&mut packet, &self.bytes, tag);
        complete(&mut packet, command, context.settings).then(|| out.push(packet))
    }
}

/// The head write-back address of a queue, from TDWBAL and TDWBAH (8.2.3.9.11, 8.2.3.9.12).
pub(super) fn head_write_back(low: u32, high: u32) -> Option<u64> {
    (low & TDWBAL_HEAD_WB_EN != 0).then_some(u64::from(high) << 32 | u64::from(low & !0b11))
}
