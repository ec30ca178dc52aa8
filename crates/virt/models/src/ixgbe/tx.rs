//! Tx rings (7.2.3): advanced and legacy descriptors over any number of buffers, with write-back of DD or of
//! the head.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Access, Burst, LookupHint};
use ringpass_registers::ixgbe::{bits::*, descriptor::*};

use super::bits::*;
use super::liar::Liar;
use super::lies::Lie;
use super::limits::{BURST, MAX_FRAME_LEN};
use super::offload::{Offload, complete, copy_tagged, insert_legacy, tag};
use super::segment::Segments;
use super::tx_context::Context;
use crate::dma::Ring;

/// Descriptors fetched in one step, more than `BURST` because contexts and malformed ones make no packet.
const DESCRIPTORS: usize = 4 * BURST;
/// Longest packet to be segmented, in bytes: the largest PAYLEN, plus headers.
const MAX_TSO_LEN: usize = (1 << 18) + 0x3ff;
/// Largest number of descriptors of a frame that is not to be segmented (7.2.1.1).
const FRAME_DESCRIPTORS: usize = 40;

/// State of the frame whose descriptors are being fetched.
#[derive(Default)]
enum FrameAssembly {
    #[default]
    Nothing,
    /// Its bytes so far are in `bytes` of the ring.
    Part(Frame),
    /// The frame is dropped; its remaining descriptors are skipped.
    Lost,
}

/// Parameters from the first descriptor of a frame.
#[derive(Clone, Copy)]
struct Frame {
    command: u64,
    descriptors: usize,
}

impl Frame {
    fn is_legacy(self) -> bool {
        self.command & TX_DEXT == 0
    }

    fn is_tso(self) -> bool {
        !self.is_legacy() && self.command & TX_TSE != 0
    }
}

/// The NIC's side of a Tx ring.
#[derive(Default)]
pub(super) struct TxRing {
    memory: Option<Ring>,
    pub(super) head: usize,
    /// Descriptors from the head on that the driver has posted.
    ready: usize,
    /// Sent frames were reported to the driver since this was last read.
    pub(super) reported: bool,
    /// Address that the head is written to, instead of DD (7.2.3.5.2).
    write_back: Option<u64>,
    gather: FrameAssembly,
    bytes: Vec<u8>,
    /// The two contexts (7.2.3.2.3).
    contexts: [Offload; 2],
    /// Segmentation state of the packet in `bytes`, until all segments are sent.
    segments: Option<Segments>,
    hint: LookupHint,
    write_back_hint: LookupHint,
    pub(super) liar: Option<Arc<Liar>>,
}

impl TxRing {
    /// Starts the ring, when TXDCTL.ENABLE was set.
    pub(super) fn enable(&mut self, memory: Option<Ring>, write_back: Option<u64>) {
        *self = Self { memory, write_back, liar: self.liar.take(), ..Self::default() };
    }

    /// Continues at the same position in `memory`, after the NIC's memory has changed.
    pub(super) fn attach(&mut self, memory: Option<Ring>) {
        (self.memory, self.ready) = (memory, 0);
    }

    pub(super) fn memory(&self) -> Option<&Ring> {
        self.memory.as_ref()
    }

    pub(super) fn disable(&mut self) {
        // The head can still be read.
        *self = Self { head: self.head, liar: self.liar.take(), ..Self::default() };
    }

    /// Takes over the driver's tail, and prefetches the first descriptors. A tail outside the ring posts no
    /// descriptors.
    #[inline]
    pub(super) fn set_tail(&mut self, tail: u32) {
        let Some(ring) = &self.memory else { return };
        self.ready = ring.distance(self.head, tail as usize);
        ring.prefetch(self.head, self.ready.min(BURST), Access::Read);
    }

    /// Fetches frames from the ring until the burst is full or the ring is empty.
    pub(super) fn fetch(&mut self, out: &mut Burst, context: &mut Context) {
        if self.ready > 0 && self.liar.as_ref().is_some_and(|liar| liar.triggers(Lie::TxStuck)) {
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
            let Some([address, command]) = ring.get(self.head) else { break };
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
            && (60..MAX_FRAME_LEN - 4).contains(&len)
            && (command >> TX_PAYLEN_SHIFT) as usize == len
            && context.settings.append_crc
            && matches!(self.gather, FrameAssembly::Nothing)
        {
            return self.whole(address, len, out, context);
        }
        self.part(address, command, out, context);
    }

    /// Fast path: fetches a frame in one buffer, as `part` would.
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

    /// Handles a descriptor of any kind.
    #[inline(never)]
    fn part(&mut self, address: u64, command: u64, out: &mut Burst, context: &mut Context) {
        const KIND: u64 = TX_DTYP_MASK | TX_DEXT;
        if command & KIND == TX_DTYP_CONTEXT | TX_DEXT {
            self.contexts[(command >> TX_IDX_SHIFT & 1) as usize] = Offload::decode(address, command);
            return;
        }
        let len = command as usize & 0xffff;
        if matches!(self.gather, FrameAssembly::Nothing) {
            // A legacy descriptor without data only requests a report.
            if command & TX_DEXT == 0 && len == 0 && command & TX_EOP != 0 {
                return;
            }
            self.bytes.clear();
            self.gather = FrameAssembly::Part(Frame { command, descriptors: 0 });
        }
        if let FrameAssembly::Part(frame) = &mut self.gather {
            frame.descriptors += 1;
            let limit = if frame.is_tso() { MAX_TSO_LEN } else { MAX_FRAME_LEN - 4 };
            let is_data =
                if frame.is_legacy() { command & TX_DEXT == 0 } else { command & KIND == TX_DTYP_DATA | TX_DEXT };
            let too_many = !frame.is_tso() && frame.descriptors > FRAME_DESCRIPTORS;
            let start = self.bytes.len();
            if !is_data || too_many || start + len > limit || len == 0 && !frame.is_legacy() {
                context.counters.tx_malformed += 1;
                self.gather = FrameAssembly::Lost;
            } else {
                self.bytes.resize(start + len, 0);
                if len > 0 && !context.dma.read(address, &mut self.bytes[start..], &mut self.hint) {
                    context.counters.dma_faults += 1;
                    self.gather = FrameAssembly::Lost;
                }
            }
        }
        if command & TX_EOP != 0
            && let FrameAssembly::Part(frame) = std::mem::take(&mut self.gather)
            && self.finish(frame, out, context).is_none()
        {
            context.counters.tx_malformed += 1;
        }
    }

    /// Sends a frame whose bytes are complete; `None` if it does not match its descriptors.
    fn finish(&mut self, frame: Frame, out: &mut Burst, context: &mut Context) -> Option<()> {
        let Frame { command, .. } = frame;
        let offload = self.contexts[(command >> TX_IDX_SHIFT & 1) as usize];
        let control = if frame.is_legacy() { (command >> 48) as u16 } else { offload.vlan };
        let tag = (command & TX_VLE != 0).then(|| tag(context.settings, control));
        if frame.is_tso() {
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

/// Returns the head write-back address of a queue, from TDWBAL and TDWBAH (8.2.3.9.11, 8.2.3.9.12).
pub(super) fn head_write_back(low: u32, high: u32) -> Option<u64> {
    (low & TDWBAL_HEAD_WB_EN != 0).then_some(u64::from(high) << 32 | u64::from(low & !0b11))
}
