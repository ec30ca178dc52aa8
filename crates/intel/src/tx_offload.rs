//! What a packet asks of the card (sections 7.2.3.2.3, 7.2.4 and 7.2.5): checksums, segmentation, a VLAN tag. And
//! frames that lie in several buffers.
//!
//! The card is told where headers lie by a context descriptor, which holds for the data descriptors behind it until the
//! next one; it is only posted when it changes.

use std::sync::atomic::Ordering;

use ringpass_memory::{Buffer, Burst, Cache, Flags, Headers, L4, Packet};
use ringpass_port::Sum;
use ringpass_registers::ixgbe::descriptor::*;

use crate::device::Setup;
use crate::ring::Ring;
use crate::tx::{COMMAND, MIN_FRAME, OVERHEAD, REPORT, Tx};

/// What a packet may ask for.
const REQUESTS: Flags = {
    let mut flags = Flags::CHECKSUM;
    flags = flags.or(Flags::L3_CHECKSUM);
    flags.or(Flags::TSO.or(Flags::VLAN))
};
/// Data descriptors of a frame at most (7.2.1.1 leaves it to the host; Linux and DPDK use up to 40).
const MOST_PIECES: usize = 40;
/// Bytes of a frame to be segmented at most: what an IP packet can have.
const LONGEST_SEGMENTED: usize = 65_535 + OVERHEAD;

/// State of a queue with offloads.
pub(crate) struct Offload {
    /// The two words of the context that the card has; none at first.
    context: [u64; 2],
    /// A buffer lies behind a context descriptor too, unused, so that every posted descriptor has one.
    spare: Cache,
    /// For each [`REPORT`] descriptors the one that reports them: the last of the frame that passes their end.
    pub(crate) reports: Box<[usize]>,
    mtu: usize,
}

impl Offload {
    /// `None` if the port's packets ask for nothing and lie in one buffer.
    pub(crate) fn new((_, config, pool): Setup) -> Option<Box<Self>> {
        let reports = vec![0; config.tx_ring / REPORT].into();
        let needed = config.offloads.any() || config.mtu + OVERHEAD > pool.buffer_size();
        needed.then(|| Box::new(Self { context: [0; 2], spare: pool.cache(), reports, mtu: config.mtu }))
    }
}

/// What the descriptors of a frame have in common.
struct Plan {
    /// The context that it needs, if any.
    context: Option<[u64; 2]>,
    /// Command, options and payload length of each data descriptor.
    data: u64,
}

impl Plan {
    /// `None` if the card cannot send that. Edits headers as the card expects them to be; doing so again changes nothing.
    fn new(packet: &mut Packet, pieces: usize, mtu: usize) -> Option<Self> {
        let total = if pieces == 1 { packet.len() } else { packet.total_len() };
        let gaps = pieces > 1 && packet.segments().any(|piece| piece.is_empty());
        if gaps || pieces > MOST_PIECES || total < MIN_FRAME {
            return None;
        }
        let mut data = COMMAND & !TX_EOP;
        let mut context = [0, TX_DTYP_CONTEXT | TX_DEXT];
        let headers = packet.headers().unwrap_or_default();
        let mut payload = total;
        if let Some(tag) = packet.vlan() {
            data |= TX_VLE;
            context[0] |= u64::from(tag) << TX_CONTEXT_VLAN_SHIFT;
        }
        if packet.flags().any(Flags::CHECKSUM | Flags::L3_CHECKSUM) {
            let headers = if packet.flags().any(Flags::CHECKSUM) { headers } else { ip_only(packet)? };
            // The card's fields have 7, 9 and 8 bits.
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
                if mss == 0 || total > LONGEST_SEGMENTED || headers.payload_start() + usize::from(mss) > mtu + OVERHEAD
                {
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

/// Where the IPv4 header lies of a packet that only asks for its checksum.
fn ip_only(packet: &Packet) -> Option<Headers> {
    let tagged = packet.array(12)? == [0x81, 0];
    let l2 = if tagged { 18 } else { 14 };
    let l3 = u16::from(packet.array::<1>(l2.into())?[0] & 0xf) * 4;
    Some(Headers { l2, l3, ..Headers::default() })
}

/// Section 7.2.4.6: lengths in the IP header are zero, and the TCP checksum is that of the pseudo header without a
/// length. The card fills them in for each frame.
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
    sum.add(&[0, 6]); // TCP
    // Inside: the caller has checked that all headers are.
    packet.write(ip + length, &[0; 2]);
    packet.write(tcp + 16, &sum.folded());
    Some(())
}

impl Ring {
    /// Posts one descriptor with the buffer behind it.
    ///
    /// # Panics
    /// If there is no room.
    fn post(&mut self, words: [u64; 2], buffer: Buffer) {
        assert!(self.room() > 0);
        let index = self.index(self.tail);
        self.descriptors[index][0].store(words[0], Ordering::Relaxed);
        self.descriptors[index][1].store(words[1], Ordering::Relaxed);
        self.buffers[index].write(buffer);
        self.tail += 1;
    }
}

impl Tx {
    /// Posts what there is room for, on a queue with offloads.
    #[inline(never)]
    pub(crate) fn post_all_offloaded(&mut self, burst: &mut Burst) {
        while self.post_offloaded(burst) {}
    }

    /// As `post_run`, for a queue with offloads: posts the first packet. `false` if there is no room for it now.
    fn post_offloaded(&mut self, burst: &mut Burst) -> bool {
        let Some(offload) = &mut self.offload else { return false };
        let Some(packet) = burst.first_mut() else { return false };
        // Plain frames need no plan.
        let plain = !packet.flags().any(REQUESTS.or(Flags::CHAINED));
        if plain && !(MIN_FRAME..=offload.mtu + OVERHEAD).contains(&packet.len()) {
            self.refuse_first(burst);
            return true;
        }
        let pieces = if packet.is_chained() { packet.segments().count() } else { 1 };
        if pieces <= MOST_PIECES && self.ring.room() <= pieces {
            return false;
        }
        let plan = if plain {
            let data = COMMAND & !TX_EOP | (packet.len() as u64) << TX_PAYLEN_SHIFT;
            Some(Plan { context: None, data })
        } else {
            Plan::new(packet, pieces, offload.mtu)
        };
        let Some(plan) = plan else {
            self.refuse_first(burst);
            return true;
        };
        let context = plan.context.filter(|context| *context != offload.context);
        let before = self.ring.tail;
        if let Some(context) = context {
            let Some(spare) = offload.spare.buffers(1).next() else { return false };
            self.ring.post(context, spare);
            offload.context = context;
        }
        let mut rest = burst.drain().next();
        while let Some(mut piece) = rest {
            rest = piece.take_rest();
            let end = if rest.is_none() { TX_EOP } else { 0 };
            let words = [piece.iova(), plan.data | end | piece.len() as u64];
            self.ring.post(words, piece.into_buffer());
        }
        // Reports are only written for whole frames (7.2.3.2.4), so the last descriptor reports all that was passed.
        let last = self.ring.index(self.ring.tail - 1);
        let passed = before / REPORT..self.ring.tail / REPORT;
        if !passed.is_empty() {
            self.ring.descriptors[last][1].fetch_or(TX_RS, Ordering::Relaxed);
            let blocks = offload.reports.len();
            passed.for_each(|block| offload.reports[block % blocks] = last);
        }
        true
    }

    #[cold]
    fn refuse_first(&mut self, burst: &mut Burst) {
        burst.discard(1);
        self.ring.device.tx_refused.fetch_add(1, Ordering::Relaxed);
    }
}
