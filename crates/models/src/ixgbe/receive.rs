//! The way of a frame from the wire to a queue.

use ringpass_memory::{Burst, Packet};
use ringpass_port::Queues;
use ringpass_registers::ixgbe::descriptor::*;
use ringpass_registers::ixgbe::*;

use super::bits::*;
use super::checksum;
use super::crc::crc32;
use super::device::{Device, bits};
use super::filter::{Cast, destination};
use super::headers::{Headers, IPV4, IPV6, TCP, UDP};
use super::rss::{Class, classify};
use super::stats::{count, count_bad, count_octets, count_rx};
use super::steering::TypeMatch;
use super::tx::BURST;
use crate::dma::{Intent, prefetch};

/// Frames without CRC are at least this long.
const SHORTEST: usize = 60;
/// Bytes of a VLAN tag.
const TAG: usize = 4;

/// A frame that the filters let through.
struct Arrived<'a> {
    frame: &'a [u8],
    address: u64,
    cast: Cast,
    tag: Option<u16>,
    headers: Headers<'a>,
}

impl Arrived<'_> {
    /// Where the frame's type begins, behind a tag.
    fn type_offset(&self) -> usize {
        if self.tag.is_some() { 12 + TAG } else { 12 }
    }

    /// Bytes of the headers that have a buffer of their own, by the types that PSRTYPE allows (8.2.3.7.4).
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
    /// SRRCTL or RXDCTL of a queue was written.
    pub(super) fn shape_rx(&mut self, queue: usize) {
        let get = |offset| self.registers.get(offset);
        self.rx[queue].configure(get(SRRCTL.at(queue).offset), get(RXDCTL.at(queue).offset));
    }

    pub(super) fn receive(&mut self, wire: &mut Queues) -> usize {
        // Until the driver listens, the frames stay with the wire, so that none is lost while it starts.
        if !self.settings.receive || self.rx_enabled == 0 {
            return 0;
        }
        let waited = self.drain_fifo();
        if self.settings.loopback {
            return waited;
        }
        let mut burst = Burst::new(BURST);
        let arrived = wire.rx.rx_burst(&mut burst);
        if self.link.up {
            // The wire's end may have written the frames on another core.
            burst.iter().for_each(|packet| prefetch(packet.as_ptr(), Intent::Read));
            burst.iter().for_each(|packet| self.arrive(packet));
        } else {
            self.counters.rx_no_link += arrived as u64;
        }
        waited + arrived
    }

    fn drain_fifo(&mut self) -> usize {
        let mut drained = 0;
        while drained < BURST
            && let Some((frame, class)) = self.fifo.front()
        {
            if !self.rx[class.queue as usize].place(frame, class, &self.dma, self.masters) {
                break;
            }
            self.rx_touched |= 1 << class.queue;
            self.fifo.pop();
            drained += 1;
        }
        drained
    }

    /// A frame from the wire: filters, classification, then a ring or the packet buffer. All of that looks at one copy, as
    /// others may write the wire's buffers.
    #[inline]
    pub(super) fn arrive(&mut self, packet: &Packet) {
        let mut frame = std::mem::take(&mut self.arrived);
        let len = packet.total_len();
        let padded = len.max(SHORTEST);
        if frame.len() < padded {
            frame.resize(padded, 0);
        }
        packet.copy_to(&mut frame);
        // Ports of the kernel hand over frames without the padding that a wire would carry.
        frame[len..padded].fill(0);
        self.take(&frame[..padded]);
        self.arrived = frame;
    }

    #[inline]
    fn take(&mut self, frame: &[u8]) {
        let address = destination(frame);
        let cast = Cast::of(address);
        let tag = self.settings.filter.tag(frame);
        let Some(passed) = self.settings.filter.check(address, cast, tag) else {
            self.counters.rx_filtered += 1;
            if cast == Cast::Broadcast {
                // Of those rejected, only these count as received (8.2.3.23.59).
                count_bad(&mut self.registers, frame.len());
            }
            return;
        };
        let type_offset = if tag.is_some() { 12 + TAG } else { 12 };
        if frame.len() > self.settings.longest + (type_offset - 12) {
            self.counters.rx_oversize += 1;
            count_bad(&mut self.registers, frame.len());
            return count(&mut self.registers, ROC.offset, 1);
        }
        if self.settings.check_length && length_is_wrong(frame, type_offset) {
            count(&mut self.registers, RLEC.offset, 1);
        }
        let headers = Headers::parse(frame, type_offset);
        let mut class = classify(self.settings.rss.as_ref(), &headers);
        if passed.inexact {
            class.status |= RX_PIF;
        }
        if tag.is_some() || !self.settings.plain {
            return self.take_otherwise(frame, tag, class);
        }
        if self.put(frame, class) {
            self.received.add(frame.len(), cast);
        }
    }

    /// A frame that is not delivered as it came, or whose queue is not only up to RSS.
    #[cold]
    fn take_otherwise(&mut self, frame: &[u8], tag: Option<u16>, class: Class) {
        let address = destination(frame);
        let cast = Cast::of(address);
        // Once more, so that the usual way keeps them in registers.
        let headers = Headers::parse(frame, if tag.is_some() { 12 + TAG } else { 12 });
        let arrived = Arrived { frame, address, cast, tag, headers };
        if self.steer(&arrived, class) {
            self.received.add(frame.len(), cast);
        }
    }

    /// Brings a frame to its queues: pools, traffic classes, filters, flow director and RSS have a say in that (7.1.2).
    /// `false` if none of them kept it.
    fn steer(&mut self, arrived: &Arrived, class: Class) -> bool {
        let Arrived { frame, address, cast, tag, .. } = *arrived;
        let type_offset = arrived.type_offset();
        let by_type = self.settings.steering.as_ref().and_then(|filters| filters.by_type(frame, type_offset, tag));
        let Some(pools) = self.settings.pools.as_ref().filter(|pools| pools.switches()) else {
            let class = self.choose(arrived, class, by_type, None);
            return self.put_altered(arrived, class, 0);
        };
        let chosen = pools.of(address, cast, tag, by_type.and_then(|filter| filter.pool));
        if chosen == 0 {
            self.counters.rx_filtered += 1;
            return false;
        }
        let mut kept = false;
        for pool in bits(chosen.into()) {
            let class = self.choose(arrived, class, by_type, Some(pool as u8));
            kept |= self.put_altered(arrived, class, pool);
        }
        kept
    }

    /// The queue of a frame, in its pool if there are pools: what the first of the filters in their order says, or
    /// else RSS.
    fn choose(&mut self, arrived: &Arrived, mut class: Class, by_type: Option<TypeMatch>, pool: Option<u8>) -> Class {
        let Arrived { frame, tag, ref headers, .. } = *arrived;
        if let Some(pools) = &self.settings.pools {
            class.queue = pools.queue(pool.unwrap_or(0), tag, class.queue);
        }
        if let Some(filter) = by_type {
            class.word = class.word & !0xfff0 | RX_PKTTYPE_ETQF | u64::from(filter.number) << 4;
        }
        let by_headers = || self.settings.steering.as_ref()?.by_headers(headers, pool);
        if let Some(queue) = by_type.and_then(|filter| filter.queue).or_else(by_headers) {
            class.queue = queue;
        } else if let Some(found) = self.direct(headers, frame, tag, pool) {
            found.apply(&mut class);
        }
        class
    }

    /// Puts a frame whose bytes or write-back are not all as they came: a tag is taken out, the CRC stays, a header is
    /// to be split off, or the checksum of a fragment reported.
    fn put_altered(&mut self, arrived: &Arrived, mut class: Class, pool: usize) -> bool {
        let Arrived { frame, tag, ref headers, .. } = *arrived;
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
                stripped = TAG;
            }
        }
        if self.rx[queue].splits() {
            let types = self.registers.get(PSRTYPE.at(pool).offset);
            class.header = arrived.header_len(types).map_or(0, |len| (len - stripped) as u16);
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

    /// Puts a frame into its ring, or behind the frames that wait; `false` if the packet buffer is full.
    #[inline(always)]
    fn put(&mut self, frame: &[u8], class: Class) -> bool {
        if self.fifo.is_empty() {
            self.rx_touched |= 1 << class.queue;
            if self.rx[class.queue as usize].place(frame, class, &self.dma, self.masters) {
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

    /// Brings what a step has received into the registers. Returns the queues whose descriptors were written back.
    pub(super) fn count_received(&mut self) -> u128 {
        let mut written = 0;
        let received = std::mem::take(&mut self.received);
        if received.packets > 0 {
            count_rx(&mut self.registers, &received);
        }
        for queue in bits(std::mem::take(&mut self.rx_touched)) {
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

/// Whether the length field of a frame says more than the frame has (8.2.3.22.8, RXLNGTHERREN). Values from 1536 on are types.
fn length_is_wrong(frame: &[u8], offset: usize) -> bool {
    let Some(&[high, low]) = frame.get(offset..offset + 2) else { return false };
    let length = u16::from_be_bytes([high, low]) as usize;
    length < 1536 && length > frame.len() - offset - 2
}
