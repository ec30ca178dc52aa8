//! Transmit offloads (sections 7.2.3.2.3, 7.2.4 and 7.2.5): checksums, segmentation (TSO), VLAN tags, and
//! frames that lie in several buffers.
//!
//! A context descriptor tells the card where headers lie. It applies to the data descriptors that follow it, up
//! to the next context descriptor, so it is posted only when it changes.

use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Cache, Flags, Headers, L4, Packet, Request};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::Sum;

use crate::completion::RS_INTERVAL;
use crate::device::QueueContext;
use crate::frame::{MIN_FRAME, OVERHEAD, SEND};
use crate::ring::Ring;

/// Largest number of data descriptors per frame (7.2.1.1 leaves it to the host; Linux and DPDK use up to 40).
const MAX_SEGMENTS: usize = 40;
/// Largest frame in bytes that can be segmented: the longest IP packet, with its Ethernet header.
const MAX_TSO_LEN: usize = 65_535 + OVERHEAD;

/// State of a Tx queue with offloads.
pub(crate) struct TxOffload {
    /// The two words of the context that the card currently has; zero at first.
    context: [u64; 2],
    /// Source of unused buffers for context descriptors, so that every posted descriptor has a buffer.
    spare: Cache,
    /// For each block of [`RS_INTERVAL`] descriptors, the index of the descriptor that reports its completion:
    /// the last one of the frame that crosses the end of the block.
    pub(crate) reports: Box<[usize]>,
    mtu: usize,
    /// The last frame's request, where the next one may have the same.
    known: Option<Known>,
}

/// A request that frames in one buffer have in common, and the descriptor fields that it leads to.
struct Known {
    request: Request,
    /// Positions of the headers, where a checksum is requested.
    headers: Headers,
    /// Version of IP, where a checksum is requested.
    version: Option<u8>,
    /// Length of the shortest frame that has all the headers, in bytes.
    least: usize,
    /// Command and options of the data descriptor. The card's present context is the one that they refer to.
    data: u64,
}

impl Known {
    /// Returns what frames with the same request as this one need; `None` if it differs for each frame.
    fn of(packet: &Packet, data: u64) -> Option<Self> {
        let flags = packet.flags();
        let l3_alone = flags.any(Flags::L3_CHECKSUM) && !flags.any(Flags::CHECKSUM);
        if flags.any(Flags::TSO.or(Flags::CHAINED)) || l3_alone {
            return None;
        }
        let headers = packet.headers().unwrap_or_default();
        let version = packet.headers().and_then(|headers| version(packet, headers));
        let least = headers.payload_start().max(MIN_FRAME);
        Some(Self { request: Request::of(packet), headers, version, least, data })
    }

    /// Returns whether a packet needs the same.
    #[inline(always)]
    fn is_for(&self, packet: &Packet) -> bool {
        self.request.is_of(packet)
            && packet.len() >= self.least
            && (self.version.is_none() || version(packet, self.headers) == self.version)
    }
}

/// Returns the version of a packet's IP header.
#[inline(always)]
fn version(packet: &Packet, headers: Headers) -> Option<u8> {
    packet.array::<1>(headers.l2.into()).map(|[byte]| byte >> 4)
}

impl TxOffload {
    /// Returns `None` if the port has no offloads and each frame fits into one buffer.
    pub(crate) fn new(QueueContext { config, pool, .. }: QueueContext) -> Option<Box<Self>> {
        let reports = vec![0; config.tx_ring / RS_INTERVAL].into();
        let needed = config.offloads.any() || config.mtu + OVERHEAD > pool.buffer_size();
        needed.then(|| Box::new(Self { context: [0; 2], spare: pool.cache(), reports, mtu: config.mtu, known: None }))
    }

    /// Posts as many packets as there is room for, on a queue with offloads.
    #[inline(never)]
    pub(crate) fn post_all(&mut self, ring: &mut Ring, burst: &mut Burst) {
        loop {
            self.post_alike(ring, burst);
            if burst.is_empty() || !self.post(ring, burst) {
                break;
            }
        }
    }

    /// Posts packets in one buffer that request nothing, or what is [known](Known).
    #[inline(always)]
    fn post_alike(&mut self, ring: &mut Ring, burst: &mut Burst) {
        let (tail, n) = (ring.tail, ring.room().min(burst.len()));
        let longest = self.mtu + OVERHEAD;
        let (mut places, mut posted) = (ring.places(), 0);
        for packet in &mut burst[..n] {
            let data = match &self.known {
                _ if packet.len() > longest => break,
                Some(known) if known.is_for(packet) => {
                    if known.data & TX_IXSM != 0 {
                        clear_l3_checksum(packet, known.headers);
                    }
                    known.data
                }
                _ if Request::is_none(packet) && packet.len() >= MIN_FRAME => SEND,
                _ => break,
            };
            let lengths = packet.len() as u64 * (1 | 1 << TX_PAYLEN_SHIFT);
            let (descriptor, place) = places.at(tail + posted);
            descriptor[0].store(packet.iova(), Ordering::Relaxed);
            descriptor[1].store(data | TX_EOP | lengths, Ordering::Relaxed);
            // SAFETY: `burst.forget` below forgets exactly the packets copied here, so each buffer keeps one owner. The packet
            // has no further segments: its flags are without `CHAINED`.
            place.write(unsafe { packet.copy_buffer() });
            posted += 1;
        }
        // SAFETY: the first `posted` packets were copied by the loop above; the ring owns their buffers now.
        unsafe { burst.forget(posted) };
        ring.tail += posted;
        for block in tail / RS_INTERVAL..ring.tail / RS_INTERVAL {
            self.report(ring, block, block * RS_INTERVAL + RS_INTERVAL - 1);
        }
    }

    /// Asks the card to report the completion of a block when it has sent the frame that ends with the descriptor of count
    /// `last`.
    fn report(&mut self, ring: &mut Ring, block: usize, last: usize) {
        ring.request_report(last);
        let blocks = self.reports.len();
        self.reports[block % blocks] = ring.index(last);
    }

    /// Posts the first packet of the burst, on a queue with offloads, or drops it if it can never be sent.
    /// Returns `false` if the burst is empty or there is no room now.
    fn post(&mut self, ring: &mut Ring, burst: &mut Burst) -> bool {
        let Some(packet) = burst.first_mut() else { return false };
        let pieces = if packet.is_chained() { packet.segments().count() } else { 1 };
        if pieces <= MAX_SEGMENTS && ring.room() <= pieces {
            return false;
        }
        let Some(plan) = Plan::new(packet, pieces, self.mtu) else {
            refuse_first(ring, burst);
            return true;
        };
        let known = Known::of(packet, plan.data);
        let context = plan.context.filter(|context| *context != self.context);
        let before = ring.tail;
        if let Some(context) = context {
            let Some(spare) = self.spare.buffers(1).next() else { return false };
            ring.post(context, spare);
            self.context = context;
        }
        // Not before the card has the context.
        self.known = known;
        let mut rest = burst.drain().next();
        while let Some(mut piece) = rest {
            rest = piece.take_rest();
            let end = if rest.is_none() { TX_EOP } else { 0 };
            let words = [piece.iova(), plan.data | plan.payload << TX_PAYLEN_SHIFT | end | piece.len() as u64];
            ring.post(words, piece.into_buffer());
        }
        // The card writes reports only for whole frames (7.2.3.2.4), so the frame's last descriptor reports all
        // blocks that the frame has completed.
        let last = ring.tail - 1;
        (before / RS_INTERVAL..ring.tail / RS_INTERVAL).for_each(|block| self.report(ring, block, last));
        true
    }
}

#[cold]
fn refuse_first(ring: &Ring, burst: &mut Burst) {
    burst.discard(1);
    ring.device.tx_refused.fetch_add(1, Ordering::Relaxed);
}

/// Descriptor fields shared by the descriptors of a frame.
struct Plan {
    /// Context descriptor that the frame needs, if any.
    context: Option<[u64; 2]>,
    /// Command and options of each data descriptor.
    data: u64,
    /// Length of the payload in bytes: that of the frame, or without headers if it is segmented.
    payload: u64,
}

impl Plan {
    /// Builds the descriptor fields of a frame; `None` if the card cannot send it. Edits headers as the card
    /// expects them (7.2.4.6); doing so twice gives the same result.
    fn new(packet: &mut Packet, pieces: usize, mtu: usize) -> Option<Self> {
        let total = if pieces == 1 { packet.len() } else { packet.total_len() };
        let gaps = pieces > 1 && packet.segments().any(|piece| piece.is_empty());
        if gaps || pieces > MAX_SEGMENTS || total < MIN_FRAME {
            return None;
        }
        let mut data = SEND;
        let mut context = [0, TX_DTYP_CONTEXT | TX_DEXT];
        let headers = packet.headers().unwrap_or_default();
        let mut payload = total;
        if let Some(tag) = packet.vlan() {
            data |= TX_VLE;
            context[0] |= u64::from(tag) << TX_CONTEXT_VLAN_SHIFT;
        }
        if packet.flags().any(Flags::CHECKSUM | Flags::L3_CHECKSUM) {
            let headers = if packet.flags().any(Flags::CHECKSUM) { headers } else { ip_only(packet)? };
            // The card's fields are 7, 9 and 8 bits wide.
            if headers.payload_start() > packet.len() || headers.l2 > 127 || !(20..512).contains(&headers.l3) {
                return None;
            }
            let ipv4 = version(packet, headers)? == 4;
            if ipv4 {
                context[1] |= TX_CONTEXT_IPV4;
            }
            context[0] |= u64::from(headers.l3) | u64::from(headers.l2) << TX_CONTEXT_MACLEN_SHIFT;
            if ipv4 && packet.flags().any(Flags::L3_CHECKSUM | Flags::TSO) {
                data |= TX_IXSM;
                clear_l3_checksum(packet, headers);
            }
            if packet.flags().any(Flags::CHECKSUM) {
                data |= TX_TXSM;
                context[1] |= if headers.protocol == L4::Tcp { TX_CONTEXT_L4_TCP } else { TX_CONTEXT_L4_UDP };
            }
            if let Some(mss) = packet.mss() {
                prepare_segmentation(packet, headers, ipv4)?;
                if mss == 0 || total > MAX_TSO_LEN || headers.payload_start() + usize::from(mss) > mtu + OVERHEAD {
                    return None;
                }
                payload = total.checked_sub(headers.payload_start()).filter(|&payload| payload > 0)?;
                data |= TX_TSE;
                context[1] |= u64::from(headers.l4) << TX_CONTEXT_L4LEN_SHIFT | u64::from(mss) << TX_CONTEXT_MSS_SHIFT;
            }
        }
        if packet.mss().is_none() && total > mtu + OVERHEAD {
            return None;
        }
        let context = (context[0] != 0).then_some(context);
        Some(Self { context, data, payload: payload as u64 })
    }
}

/// Clears the checksum of the IPv4 header, which the card fills in.
fn clear_l3_checksum(packet: &mut Packet, headers: Headers) {
    packet.write(usize::from(headers.l2) + 10, &[0; 2]);
}

/// Locates the IPv4 header of a packet that requests only the IPv4 header checksum.
fn ip_only(packet: &Packet) -> Option<Headers> {
    let tagged = packet.array(12)? == [0x81, 0];
    let l2 = if tagged { 18 } else { 14 };
    let l3 = u16::from(packet.array::<1>(l2.into())?[0] & 0xf) * 4;
    Some(Headers { l2, l3, ..Headers::default() })
}

/// Prepares headers for segmentation (section 7.2.4.6): the length in the IP header becomes zero, and the TCP
/// checksum becomes that of the pseudo header without a length. The card fills in both for each segment.
fn prepare_segmentation(packet: &mut Packet, headers: Headers, ipv4: bool) -> Option<()> {
    let (ip, tcp) = (usize::from(headers.l2), headers.l4_start());
    if headers.protocol != L4::Tcp || headers.l4 < 20 {
        return None;
    }
    let mut sum = Sum::default();
    let length = if ipv4 {
        sum.add(&packet.array::<8>(ip + 12)?);
        2
    } else {
        sum.add(&packet.array::<32>(ip + 8)?);
        4
    };
    sum.add(&[0, 6]); // IP protocol number of TCP
    // In bounds: the caller has checked that all headers lie in this buffer.
    packet.write(ip + length, &[0; 2]);
    packet.write(tcp + 16, &sum.folded());
    Some(())
}
