//! Tx rings (7.2.3): advanced and legacy descriptors over any number of buffers, with write-back of DD or of
//! the head.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Access, Burst, FrameBatch, LookupHint};
use ringpass_pci::registers::ixgbe::{bits::*, descriptor::*};

use super::bits::*;
use super::decode::Settings;
use super::liar::Liar;
use super::lies::Lie;
use super::limits::{BURST, MAX_FRAME_LEN, MIN_FRAME_LEN};
use super::offload::{Offload, complete, copy_tagged, insert_legacy, tag};
use super::segment::Segments;
use super::stats::{Batch, Neighbours};
use super::tx_context::{Buffers, Context};
use crate::dma::Ring;

/// Descriptors fetched in one step, more than `BURST` because contexts and malformed ones make no packet.
const DESCRIPTORS: usize = 4 * BURST;
/// Longest packet to be segmented, in bytes: the largest PAYLEN, plus headers.
const MAX_TSO_LEN: usize = (1 << 18) + 0x3ff;
/// Largest number of descriptors of a frame that is not to be segmented (7.2.1.1).
const FRAME_DESCRIPTORS: usize = 40;

/// Extent of a run of descriptors that was fetched.
#[derive(Default)]
struct Run {
    descriptors: usize,
    /// Head after the last descriptor that asked for a report.
    reported: Option<usize>,
}

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
    /// descriptors. Returns whether there is something to send.
    #[inline]
    pub(super) fn set_tail(&mut self, tail: u32) -> bool {
        if tail as usize == self.head && self.segments.is_none() {
            self.ready = 0;
            return false;
        }
        let Some(ring) = &self.memory else { return self.segments.is_some() };
        self.ready = ring.distance(self.head, tail as usize);
        ring.prefetch(self.head, self.ready.min(BURST), Access::Read);
        self.ready > 0 || self.segments.is_some()
    }

    /// Handles no more than one descriptor, until the tail is taken over again.
    pub(super) fn limit_to_one(&mut self) {
        self.ready = self.ready.min(1);
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
        let mut left = self.ready.min(DESCRIPTORS);
        while left > 0 && out.room() > 0 && self.segments.is_none() {
            let limit = left.min(out.room());
            let mut buffers = context.buffers.take(limit);
            let run = self.run(&ring, limit, context.settings, |address, len, hint| {
                let mut packet = buffers.next()?;
                packet.set_len(len);
                let copied = context.dma.read_packet(address, &mut packet, hint);
                if copied {
                    out.push(packet);
                } else {
                    context.counters.dma_faults += 1;
                }
                Some(())
            });
            drop(buffers);
            left -= run.descriptors;
            reported = run.reported.or(reported);
            if run.descriptors > 0 {
                continue;
            }
            let Some([address, command]) = ring.get(self.head) else { break };
            let word = command.load(Ordering::Relaxed);
            self.part(address.load(Ordering::Relaxed), word, out, context);
            self.head = if self.head + 1 == len { 0 } else { self.head + 1 };
            left -= 1;
            if word & TX_RS != 0 {
                reported = Some(self.head);
                if self.write_back.is_none() {
                    command.store(TX_DD, Ordering::Release);
                }
            }
        }
        if let Some(liar) = &self.liar {
            liar.count(out.len());
            reported = reported.map(|head| liar.head(head, len));
        }
        self.report(reported, context);
        self.memory = Some(ring);
    }

    /// Fetches frames as copies, until there is no room, the ring is empty or a descriptor needs [`fetch`](Self::fetch), and
    /// counts them. Returns `false` if that descriptor is the first.
    pub(super) fn fetch_frames(&mut self, out: &mut FrameBatch, counts: &mut Batch, context: &mut Context) -> bool {
        if self.segments.is_some() || self.liar.is_some() {
            return false;
        }
        let Some(ring) = self.memory.take() else { return false };
        let (mut fetched, mut reported) = (false, None);
        let mut neighbours = Neighbours::default();
        let mut left = self.ready.min(BURST);
        while left > 0 {
            let run = self.run(&ring, left.min(out.room()), context.settings, |address, len, hint| {
                let frame = out.push(len);
                if context.dma.read(address, frame, hint) {
                    neighbours.add(frame, counts);
                } else {
                    out.pop();
                    context.counters.dma_faults += 1;
                }
                Some(())
            });
            if run.descriptors == 0 {
                break;
            }
            fetched = true;
            left -= run.descriptors;
            reported = run.reported.or(reported);
        }
        neighbours.end(counts);
        self.report(reported, context);
        self.memory = Some(ring);
        fetched
    }

    /// Writes the head back after reports, if the driver wants that instead of DD.
    fn report(&mut self, reported: Option<usize>, context: &mut Context) {
        self.reported |= reported.is_some();
        if let Some((address, head)) = self.write_back.zip(reported)
            && !context.dma.store(address, head as u32, &mut self.write_back_hint)
        {
            context.counters.dma_faults += 1;
        }
    }

    /// Fast path: copies a run of frames that each have one descriptor and are sent as they are, with the same result as
    /// [`part`](Self::part), and reports them together. The run ends before any other descriptor, where `copy` has no room,
    /// and at the end of the ring.
    #[inline(always)]
    fn run(
        &mut self,
        ring: &Ring,
        limit: usize,
        settings: &Settings,
        mut copy: impl FnMut(u64, usize, &mut LookupHint) -> Option<()>,
    ) -> Run {
        let mut run = Run::default();
        if !settings.append_crc || !matches!(self.gather, FrameAssembly::Nothing) {
            return run;
        }
        // Descriptors of the run that ask for a report, a bit each.
        let mut asked: u64 = 0;
        let limit = limit.min(ring.len() - self.head).min(BURST);
        while run.descriptors < limit
            && let Some([address, command]) = ring.get(self.head + run.descriptors)
            && let word = command.load(Ordering::Relaxed)
            && let Some(len) = whole_frame(word)
            && copy(address.load(Ordering::Relaxed), len, &mut self.hint).is_some()
        {
            asked |= u64::from(word & TX_RS != 0) << run.descriptors;
            run.descriptors += 1;
        }
        if self.write_back.is_none() {
            for at in set_bits(asked.into()) {
                let Some([_, command]) = ring.get(self.head + at) else { break };
                command.store(TX_DD, Ordering::Release);
            }
        }
        let after = |descriptors: usize| (self.head + descriptors) % ring.len();
        run.reported = (asked != 0).then(|| after((u64::BITS - asked.leading_zeros()) as usize));
        self.head = after(run.descriptors);
        run
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

/// Returns the length of the frame that a descriptor describes, if it is all of the frame and asks for no change. Such
/// frames fit the NIC's buffers.
#[inline]
fn whole_frame(command: u64) -> Option<usize> {
    const KIND: u64 = TX_DTYP_MASK | TX_DEXT | TX_EOP | TX_IFCS | TX_VLE | TX_TSE | TX_IXSM | TX_TXSM;
    let len = command as usize & 0xffff;
    let whole = command & KIND == TX_DTYP_DATA | TX_DEXT | TX_EOP | TX_IFCS
        && (MIN_FRAME_LEN..=Buffers::SIZE).contains(&len)
        && (command >> TX_PAYLEN_SHIFT) as usize == len;
    whole.then_some(len)
}

/// Returns the head write-back address of a queue, from TDWBAL and TDWBAH (8.2.3.9.11, 8.2.3.9.12).
pub(super) fn head_write_back(low: u32, high: u32) -> Option<u64> {
    (low & TDWBAL_HEAD_WB_EN != 0).then_some(u64::from(high) << 32 | u64::from(low & !0b11))
}
