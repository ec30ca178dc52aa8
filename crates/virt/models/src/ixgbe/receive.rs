//! The path of a frame from the wire to a queue.

use ringpass_memory::FrameBatch;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;
use ringpass_port::QueuePair;

use super::bits::*;
use super::checksum;
use super::crc::crc32;
use super::device::Device;
use super::doorbells::Doorbells;
use super::filter::{Cast, destination};
use super::headers::{Headers, IPV4, IPV6, TCP, UDP};
use super::limits::BURST;
use super::rss::{Class, classify};
use super::stats::{count, count_bad, count_octets, count_rx};
use super::steering::TypeMatch;

/// EtherType of IPv4.
const ETHERTYPE_IPV4: u16 = 0x0800;
/// Length of a VLAN tag in bytes.
const VLAN_TAG_LEN: usize = 4;

/// A frame that passed the filters.
struct AcceptedFrame<'a> {
    frame: &'a [u8],
    address: u64,
    cast: Cast,
    tag: Option<u16>,
    headers: Headers<'a>,
}

impl AcceptedFrame<'_> {
    /// Returns the offset of the EtherType, after a tag if there is one.
    fn type_offset(&self) -> usize {
        if self.tag.is_some() { 12 + VLAN_TAG_LEN } else { 12 }
    }

    /// Returns the length of the headers to be split off, according to the types that PSRTYPE enables
    /// (8.2.3.7.4).
    fn header_len(&self, types: u32) -> Option<usize> {
        let headers = &self.headers;
        let allowed = |bit: u32, packet_type: u64| types & bit != 0 && headers.packet_type & packet_type != 0;
        let len = if allowed(PSRTYPE_TCP, TCP) || allowed(PSRTYPE_UDP, UDP) {
            headers.transport_end()?
        } else if allowed(PSRTYPE_IPV4, IPV4) || allowed(PSRTYPE_IPV6, IPV6) {
            headers.ip_end
        } else if types & PSRTYPE_L2 != 0 {
            self.type_offset() + 2
        } else {
            return None;
        };
        (len <= self.frame.len()).then_some(len)
    }
}

impl Device {
    /// Applies SRRCTL and RXDCTL of a queue after a write.
    pub(super) fn configure_rx_queue(&mut self, queue: usize) {
        let get = |offset| self.registers.get(offset);
        self.rx[queue].configure(get(SRRCTL.at(queue).offset), get(RXDCTL.at(queue).offset));
    }

    /// Takes frames from the wire; returns how many.
    #[inline]
    pub(super) fn take_from_wire(&mut self, wire: &mut QueuePair) -> usize {
        // Until the driver enables reception, frames stay in the wire, so that none is lost during start-up.
        if !self.settings.receive || self.rx_enabled == 0 || self.settings.loopback {
            return 0;
        }
        wire.rx.rx_frames(&mut self.frames)
    }

    /// Receives frames that waited, and `arrived` from the wire.
    pub(super) fn receive(&mut self, arrived: usize, doorbells: &Doorbells) -> usize {
        self.set_rx_tails(doorbells);
        let waited = self.drain_fifo();
        if self.link.up {
            self.receive_frames();
        } else {
            self.write_back();
            self.frames.clear();
            self.counters.rx_no_link += arrived as u64;
        }
        waited + arrived
    }

    /// Receives the frames of `frames`: filters, classification, then a ring or the packet buffer. All of that uses one
    /// copy of each, because others may write the wire's buffers.
    pub(super) fn receive_frames(&mut self) {
        let mut frames = std::mem::take(&mut self.frames);
        let mut next = 0;
        while next < frames.len() {
            let (common, is_uniform) = self.classify_common(&frames, next);
            let delivered = self.deliver_common(&frames, next, common, is_uniform);
            next += delivered;
            // A frame of another kind comes next, or frames have to wait, and those behind them as well.
            let end = if delivered == common { frames.len().min(next + 1) } else { frames.len() };
            frames.range(next..end).for_each(|frame| self.take(frame));
            next = end;
        }
        frames.clear();
        self.frames = frames;
        self.write_back();
    }

    /// Writes back the descriptors of the frames that were delivered.
    pub(super) fn write_back(&mut self) {
        set_bits(self.rx_touched).for_each(|queue| self.rx[queue].write_back());
    }

    fn drain_fifo(&mut self) -> usize {
        let mut drained = 0;
        while drained < BURST
            && let Some((frame, class)) = self.fifo.front()
        {
            if !self.rx[class.queue as usize].place(frame, class, &self.dma, self.dma_allowed) {
                break;
            }
            self.rx_touched |= 1 << class.queue;
            self.fifo.pop();
            drained += 1;
        }
        drained
    }

    /// Fast path: checks and classifies the frames from number `start` on in `classes`, with the same results as
    /// [`take`](Self::take), up to the first that is not of the most common kind. Returns how many there are, and whether they
    /// have one length and one destination address.
    fn classify_common(&mut self, frames: &FrameBatch, start: usize) -> (usize, bool) {
        let Self { settings, tuples, classes, .. } = self;
        let tagged = settings.filter.vlan_type == ETHERTYPE_IPV4;
        if !settings.plain || tagged || !self.fifo.is_empty() || !self.dma_allowed {
            return (0, true);
        }
        let (rss, longest) = (settings.rss.as_ref(), settings.longest);
        let (mut checked, mut inexact) = (None, 0);
        let mut count = 0;
        let mut is_uniform = true;
        let mut len = None;
        for (frame, class) in frames.range(start..frames.len()).zip(classes.iter_mut()) {
            let address = destination(frame);
            if checked != Some(address) {
                let Some(passed) = settings.filter.check(address, Cast::of(address), None) else { break };
                is_uniform &= checked.is_none();
                (checked, inexact) = (Some(address), if passed.inexact { RX_PIF } else { 0 });
            }
            if len != Some(frame.len()) {
                if frame.len() > longest {
                    break;
                }
                is_uniform &= len.is_none();
                len = Some(frame.len());
            }
            let Some(common) = tuples.classify(rss, frame) else { break };
            *class = Class { status: common.status | inexact, ..common };
            count += 1;
        }
        (count, is_uniform)
    }

    /// Delivers `count` frames from number `start` on, which [`classify_common`](Self::classify_common) described, up to the
    /// first that has to wait or whose buffer is not as usual. Returns how many it delivered.
    fn deliver_common(&mut self, frames: &FrameBatch, start: usize, count: usize, is_uniform: bool) -> usize {
        let mut next = start;
        for run in self.classes[..count].chunk_by(|class, next| class.queue == next.queue) {
            let queue = run[0].queue;
            self.rx_touched |= 1 << queue;
            let placed = self.rx[queue as usize].place_common(frames, next, run, &self.dma);
            next += placed;
            if placed < run.len() {
                break;
            }
        }
        let mut delivered = frames.range(start..next);
        if is_uniform && let Some(first) = delivered.next() {
            self.received.add_equal(first.len(), Cast::of(destination(first)), (next - start) as u64);
        } else {
            self.received.add_all(delivered);
        }
        next - start
    }

    /// Receives a frame of any kind.
    #[inline]
    fn take(&mut self, frame: &[u8]) {
        let address = destination(frame);
        let cast = Cast::of(address);
        let tag = self.settings.filter.tag(frame);
        let Some(passed) = self.settings.filter.check(address, cast, tag) else {
            self.counters.rx_filtered += 1;
            if cast == Cast::Broadcast {
                // Of the rejected frames, only broadcasts count as received (8.2.3.23.59).
                count_bad(&mut self.registers, frame.len());
            }
            return;
        };
        let type_offset = if tag.is_some() { 12 + VLAN_TAG_LEN } else { 12 };
        if frame.len() > self.settings.longest + (type_offset - 12) {
            self.counters.rx_oversize += 1;
            count_bad(&mut self.registers, frame.len());
            return count(&mut self.registers, ROC.offset, 1);
        }
        if self.settings.check_length && length_is_wrong(frame, type_offset) {
            count(&mut self.registers, RLEC.offset, 1);
        }
        let (rss, plain) = (self.settings.rss.as_ref(), self.settings.plain && tag.is_none());
        let common = if plain { self.tuples.classify(rss, frame) } else { None };
        let mut class = common.unwrap_or_else(|| classify(rss, &Headers::parse(frame, type_offset)));
        if passed.inexact {
            class.status |= RX_PIF;
        }
        if !plain {
            return self.receive_slow_path(frame, tag, class);
        }
        if self.put(frame, class) {
            self.received.add(frame.len(), cast);
        }
    }

    /// Receives a frame that is not delivered unchanged, or whose queue RSS alone does not determine.
    #[cold]
    fn receive_slow_path(&mut self, frame: &[u8], tag: Option<u16>, class: Class) {
        let address = destination(frame);
        let cast = Cast::of(address);
        // Parsed a second time, so that the fast path keeps the headers in registers.
        let headers = Headers::parse(frame, if tag.is_some() { 12 + VLAN_TAG_LEN } else { 12 });
        let rx_frame = AcceptedFrame { frame, address, cast, tag, headers };
        if self.steer(&rx_frame, class) {
            self.received.add(frame.len(), cast);
        }
    }

    /// Delivers a frame to its queues, chosen by pools, traffic classes, filters, flow director and RSS
    /// (7.1.2). Returns `false` if none of them kept it.
    fn steer(&mut self, rx_frame: &AcceptedFrame, class: Class) -> bool {
        let AcceptedFrame { frame, address, cast, tag, .. } = *rx_frame;
        let type_offset = rx_frame.type_offset();
        let by_type = self.settings.steering.as_ref().and_then(|filters| filters.by_type(frame, type_offset, tag));
        let Some(pools) = self.settings.pools.as_ref().filter(|pools| pools.switches()) else {
            let class = self.choose(rx_frame, class, by_type, None);
            return self.put_rewritten(rx_frame, class, 0);
        };
        let chosen = pools.of(address, cast, tag, by_type.and_then(|filter| filter.pool));
        if chosen == 0 {
            self.counters.rx_filtered += 1;
            return false;
        }
        let mut kept = false;
        for pool in set_bits(chosen.into()) {
            let class = self.choose(rx_frame, class, by_type, Some(pool as u8));
            kept |= self.put_rewritten(rx_frame, class, pool);
        }
        kept
    }

    /// Chooses a frame's queue, within its pool if there are pools: the first matching filter in the specified
    /// order decides, or else RSS.
    fn choose(
        &mut self,
        rx_frame: &AcceptedFrame,
        mut class: Class,
        by_type: Option<TypeMatch>,
        pool: Option<u8>,
    ) -> Class {
        let AcceptedFrame { frame, tag, ref headers, .. } = *rx_frame;
        if let Some(pools) = &self.settings.pools {
            class.queue = pools.queue(pool.unwrap_or(0), tag, class.queue);
        }
        if let Some(filter) = by_type {
            class.word = class.word & !0xfff0 | RX_PKTTYPE_ETQF | u64::from(filter.number) << 4;
        }
        let by_headers = || self.settings.steering.as_ref()?.by_headers(headers, pool);
        if let Some(queue) = by_type.and_then(|filter| filter.queue).or_else(by_headers) {
            class.queue = queue;
        } else if let Some(settings) = &self.settings.director
            && let Some(found) = self.director.direct(settings, &mut self.registers, headers, frame, tag, pool)
        {
            found.apply(&mut class);
        }
        class
    }

    /// Delivers a frame with changes to its bytes or write-back: a tag is stripped, the CRC is kept, a header
    /// is split off, or the checksum of a fragment is reported.
    fn put_rewritten(&mut self, rx_frame: &AcceptedFrame, mut class: Class, pool: usize) -> bool {
        let AcceptedFrame { frame, tag, ref headers, .. } = *rx_frame;
        let queue = class.queue as usize;
        if self.settings.report_fragments
            && let Some((word, status)) = checksum::fragment(headers)
        {
            class.word = class.word & 0xffff_ffff | word;
            class.status |= status;
        }
        let mut stripped = 0;
        if let Some(tag) = tag {
            class.status |= RX_VP;
            if self.settings.strip_vlan >> queue & 1 != 0 {
                class.status |= u64::from(tag) << RX_VLAN_SHIFT;
                stripped = VLAN_TAG_LEN;
            }
        }
        if self.rx[queue].splits() {
            let types = self.registers.get(PSRTYPE.at(pool).offset);
            class.header = rx_frame.header_len(types).map_or(0, |len| (len - stripped) as u16);
        }
        if stripped == 0 && self.settings.strip_crc {
            return self.put(frame, class);
        }
        let mut whole = std::mem::take(&mut self.scratch);
        whole.clear();
        whole.extend_from_slice(&frame[..12]);
        whole.extend_from_slice(&frame[12 + stripped..]);
        if !self.settings.strip_crc {
            whole.extend_from_slice(&crc32(frame).to_le_bytes());
        }
        let kept = self.put(&whole, class);
        self.scratch = whole;
        kept
    }

    /// Writes a frame to its ring, or queues it behind the frames that wait; `false` if the packet buffer is
    /// full.
    #[inline(always)]
    fn put(&mut self, frame: &[u8], class: Class) -> bool {
        if self.fifo.is_empty() {
            self.rx_touched |= 1 << class.queue;
            if self.rx[class.queue as usize].place(frame, class, &self.dma, self.dma_allowed) {
                return true;
            }
        }
        let kept = self.fifo.push(frame, class, self.settings.packet_buffer);
        if !kept {
            self.counters.rx_buffer_full += 1;
            count(&mut self.registers, MPC.at(0).offset, 1);
        }
        kept
    }

    /// Adds what a step received to the registers. Returns the queues whose descriptors were written back.
    pub(super) fn count_received(&mut self) -> u128 {
        let mut written = 0;
        if self.rx_touched == 0 && self.received.packets == 0 {
            return written;
        }
        let received = std::mem::take(&mut self.received);
        if received.packets > 0 {
            count_rx(&mut self.registers, &received);
        }
        for queue in set_bits(std::mem::take(&mut self.rx_touched)) {
            let tally = std::mem::take(&mut self.rx[queue].tally);
            written |= u128::from(tally.packets + tally.faults > 0) << queue;
            let counters = &mut self.counters;
            counters.rx_packets += tally.packets;
            counters.rx_bytes += tally.bytes - if self.settings.strip_crc { 0 } else { 4 * tally.packets };
            counters.rx_no_descriptor += tally.no_descriptor;
            counters.rx_queue_disabled += tally.disabled;
            counters.dma_faults += tally.faults;
            let map = self.registers.get(RQSMR.at(queue / 4).offset);
            let counter = (map >> (queue % 4 * 8) & 0xf) as usize;
            count(&mut self.registers, QPRC.at(counter).offset, tally.packets);
            count_octets(&mut self.registers, QBRC_L.at(counter).offset, QBRC_H.at(counter).offset, tally.bytes);
            count(&mut self.registers, QPRDC.at(counter).offset, tally.no_descriptor + tally.disabled);
        }
        written
    }
}

/// Returns whether the length field of a frame is larger than the frame (8.2.3.22.8, RXLNGTHERREN). Values from
/// 1536 on are EtherTypes.
fn length_is_wrong(frame: &[u8], offset: usize) -> bool {
    let Some(&[high, low]) = frame.get(offset..offset + 2) else { return false };
    let length = u16::from_be_bytes([high, low]) as usize;
    length < 1536 && length > frame.len() - offset - 2
}
