//! Transmit offloads (sections 7.2.3.2.3, 7.2.4 and 7.2.5): checksums, segmentation (TSO), VLAN tags, and
//! frames that lie in several buffers.
//!
//! A context descriptor tells the card where headers lie. It applies to the data descriptors that follow it, up
//! to the next context descriptor, so it is posted only when it changes.

use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Cache, Flags, Headers, L4, Packet};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::Sum;

use crate::completion::RS_INTERVAL;
use crate::device::QueueContext;
use crate::frame::{MIN_FRAME, OVERHEAD, SEND};
use crate::ring::Ring;

/// Flags by which a packet requests an offload.
const REQUESTS: Flags = {
    let mut flags = Flags::CHECKSUM;
    flags = flags.or(Flags::L3_CHECKSUM);
    flags.or(Flags::TSO.or(Flags::VLAN))
};
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
}

impl TxOffload {
    /// Returns `None` if the port has no offloads and each frame fits into one buffer.
    pub(crate) fn new(QueueContext { config, pool, .. }: QueueContext) -> Option<Box<Self>> {
        let reports = vec![0; config.tx_ring / RS_INTERVAL].into();
        let needed = config.offloads.any() || config.mtu + OVERHEAD > pool.buffer_size();
        needed.then(|| Box::new(Self { context: [0; 2], spare: pool.cache(), reports, mtu: config.mtu }))
    }

    /// Posts as many packets as there is room for, on a queue with offloads.
    #[inline(never)]
    pub(crate) fn post_all(&mut self, ring: &mut Ring, burst: &mut Burst) {
        while self.post(ring, burst) {}
    }

    /// Posts the first packet of the burst, on a queue with offloads, or drops it if it can never be sent.
    /// Returns `false` if the burst is empty or there is no room now.
    fn post(&mut self, ring: &mut Ring, burst: &mut Burst) -> bool {
        let Some(packet) = burst.first_mut() else { return false };
        // Frames without requests, in one buffer, need no context.
        let plain = !packet.flags().any(REQUESTS.or(Flags::CHAINED));
        if plain && !(MIN_FRAME..=self.mtu + OVERHEAD).contains(&packet.len()) {
            refuse_first(ring, burst);
            return true;
        }
        let pieces = if packet.is_chained() { packet.segments().count() } else { 1 };
        if pieces <= MAX_SEGMENTS && ring.room() <= pieces {
            return false;
        }
        let plan = if plain {
            let data = SEND | (packet.len() as u64) << TX_PAYLEN_SHIFT;
            Some(Plan { context: None, data })
        } else {
            Plan::new(packet, pieces, self.mtu)
        };
        let Some(plan) = plan else {
            refuse_first(ring, burst);
            return true;
        };
        let context = plan.context.filter(|context| *context != self.context);
        let before = ring.tail;
        if let Some(context) = context {
            let Some(spare) = self.spare.buffers(1).next() else { return false };
            ring.post(context, spare);
            self.context = context;
        }
        let mut rest = burst.drain().next();
        while let Some(mut piece) = rest {
            rest = piece.take_rest();
            let end = if rest.is_none() { TX_EOP } else { 0 };
            let words = [piece.iova(), plan.data | end | piece.len() as u64];
            ring.post(words, piece.into_buffer());
        }
        // The card writes reports only for whole frames (7.2.3.2.4), so the frame's last descriptor reports all
        // blocks that the frame has completed.
        let last = ring.index(ring.tail - 1);
        let passed = before / RS_INTERVAL..ring.tail / RS_INTERVAL;
        if !passed.is_empty() {
            ring.descriptors[last][1].fetch_or(TX_RS, Ordering::Relaxed);
            let blocks = self.reports.len();
            passed.for_each(|block| self.reports[block % blocks] = last);
        }
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
    /// Command, options and payload length of each data descriptor.
    data: u64,
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
            let ipv4 = packet.array::<1>(headers.l2.into())?[0] >> 4 == 4;
            if ipv4 {
                context[1] |= TX_CONTEXT_IPV4;
            }
            context[0] |= u64::from(headers.l3) | u64::from(headers.l2) << TX_CONTEXT_MACLEN_SHIFT;
            if ipv4 && packet.flags().any(Flags::L3_CHECKSUM | Flags::TSO) {
                data |= TX_IXSM;
                packet.write(usize::from(headers.l2) + 10, &[0; 2]);
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
        Some(Self { context, data: data | (payload as u64) << TX_PAYLEN_SHIFT })
    }
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
