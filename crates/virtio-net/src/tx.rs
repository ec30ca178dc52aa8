//! The sending queue (VIRTIO 1.3, 5.1.6.2).

use ringpass_memory::{Burst, Cache, Flags, Mempool, Packet, Reclaimer};
use ringpass_port::TxQueue;
use ringpass_virtio::driver::{Access, Virtqueue};
use ringpass_virtio::features::HOST_ECN;
use ringpass_virtio::net_header;

use crate::hang::Watch;
use crate::negotiate::{Agreed, MOST_PIECES, SHORTEST};
use crate::ring::{Counters, Ring};

/// Buffers are reclaimed by so many, if the ring has that many.
const RECLAIM: usize = 64;
/// What makes a packet more than a frame, beside further segments.
const SPECIAL: Flags = Flags::CHECKSUM.or(Flags::TSO);

/// A queue of packets that the device has yet to read, each with a header in front.
pub(crate) struct Tx<Q: Virtqueue + 'static> {
    ring: Ring<Q>,
    reclaimer: Reclaimer,
    header: usize,
    /// Bytes of a frame behind its Ethernet header.
    span: usize,
    /// With no more free descriptors than this, buffers are reclaimed.
    reclaim_at: usize,
    special: Special,
    sent: u64,
    watch: Watch,
}

/// What packets other than frames in one buffer need.
struct Special {
    /// Headers for packets without headroom.
    cache: Cache,
    /// What packets may ask of the device.
    hardware: Flags,
    /// The device is told of congestion.
    ecn: bool,
    /// Buffers of a packet at most, with one for the header; and whether they take one descriptor together.
    pieces: usize,
    indirect: bool,
}

impl<Q: Virtqueue + 'static> Tx<Q> {
    /// A queue that sends as was agreed.
    pub(crate) fn new(ring: Ring<Q>, agreed: &Agreed, pool: &Mempool) -> Self {
        let (size, indirect) = (ring.size(), ring.indirect());
        let pieces = if indirect { agreed.tx_tables() } else { MOST_PIECES + 1 }.min(size);
        let (hardware, ecn) = (agreed.hardware(), agreed.has(HOST_ECN));
        let special = Special { cache: pool.cache(), hardware, ecn, pieces, indirect };
        let (header, span) = (agreed.header, agreed.longest_sent - SHORTEST);
        let reclaim_at = size - RECLAIM.min(size.div_ceil(2));
        let (reclaimer, watch) = Default::default();
        Self { ring, reclaimer, header, span, reclaim_at, special, sent: 0, watch }
    }

    /// Takes back the buffers of packets that the device has read. `false` if it broke the rules.
    #[inline(never)]
    fn reclaim(&mut self) -> bool {
        match self.ring.queue.take_back(&mut self.reclaimer) {
            Ok(count) => {
                self.sent += count as u64;
                true
            }
            Err(broken) => {
                self.ring.fail(broken);
                false
            }
        }
    }

    /// Posts what there is room for.
    #[inline(always)]
    fn post_all<const HEADER: usize>(&mut self, burst: &mut Burst) {
        let (mut packets, mut bytes) = (0, 0);
        let span = self.span;
        loop {
            let mut drain = burst.drain();
            let plain = std::iter::from_fn(|| {
                let packet = drain.next_behind_zeros::<HEADER>(SPECIAL, SHORTEST..=SHORTEST + span)?;
                bytes += packet.len() as u64;
                Some(packet)
            });
            packets += self.ring.queue.post_run(Access::Read, plain);
            drop(drain);
            if burst.is_empty() || self.ring.queue.room() == 0 || !self.post_special(burst) {
                break;
            }
        }
        if packets > 0 {
            Counters::add(&self.ring.counters.packets, packets as u64);
            Counters::add(&self.ring.counters.bytes, bytes - (packets * HEADER) as u64);
        }
    }

    /// Posts the first packet, which is more than a frame in a buffer, or drops it if it cannot be sent. `false` if
    /// there is no room for it now.
    #[inline(never)]
    fn post_special(&mut self, burst: &mut Burst) -> bool {
        let Some(packet) = burst.first() else { return false };
        let counters = &self.ring.counters;
        let len = packet.total_len();
        let apart = packet.headroom() < self.header;
        let pieces = packet.segments().count() + usize::from(apart);
        if !self.sendable(packet, len) || pieces > self.special.pieces {
            burst.discard(1);
            Counters::add(&counters.drops, 1);
            return true;
        }
        // One more for a header that is a descriptor of its own.
        let needed = if self.special.indirect { 1 } else { pieces + 1 };
        if self.ring.queue.room() < needed.min(self.special.pieces) {
            return false;
        }
        let spare = if apart { self.special.cache.take(1).next() } else { None };
        if apart && spare.is_none() {
            return false;
        }
        let Some(packet) = burst.drain().next() else { return false };
        let packet = self.special.with_header(packet, spare, self.header);
        if packet.is_some_and(|packet| self.ring.queue.post_chain(Access::Read, packet).is_ok()) {
            Counters::add(&counters.packets, 1);
            Counters::add(&counters.bytes, len as u64);
        } else {
            Counters::add(&counters.drops, 1);
        }
        true
    }

    /// Whether a packet can ever be sent, but for the number of its pieces.
    fn sendable(&self, packet: &Packet, len: usize) -> bool {
        let requests = packet.flags().and(Flags::CHECKSUM | Flags::TSO);
        let headers = packet.headers().unwrap_or_default();
        let payload = headers.payload_start();
        if requests.without(self.special.hardware) != Flags::default()
            || packet.len() < payload.max(SHORTEST)
            || packet.segments().any(|segment| segment.is_empty())
        {
            return false;
        }
        let longest = self.span + SHORTEST;
        match packet.mss() {
            // What is cut is an IP packet, which has a longest length of its own.
            Some(mss) => {
                let ip = len - usize::from(headers.l2);
                mss > 0 && payload + usize::from(mss) <= longest && ip <= 65_535 && len > payload
            }
            None => len <= longest,
        }
    }
}

impl Special {
    /// Puts the header before a packet, in a buffer of its own if there is one.
    fn with_header(&self, mut packet: Packet, spare: Option<Packet>, len: usize) -> Option<Packet> {
        const NEEDS_CSUM: u8 = 1;
        const GSO_ECN: u8 = 0x80;
        const CWR: u8 = 0x80;
        let mut header = net_header::encode(&packet);
        // What is known of a frame the device is not told (5.1.6.2.1).
        header[0] &= NEEDS_CSUM;
        if self.ecn
            && let Some(headers) = packet.headers().filter(|_| packet.mss().is_some())
            && packet.get(headers.l4_start() + 13).is_some_and(|flags| flags & CWR != 0)
        {
            header[1] |= GSO_ECN;
        }
        let Some(mut apart) = spare else {
            write_header(packet.prepend(len)?, &header);
            return Some(packet);
        };
        apart.set_len(len);
        write_header(&mut apart, &header);
        apart.append(packet);
        Some(apart)
    }
}

fn write_header(place: &mut [u8], header: &[u8; net_header::LEN]) {
    let (known, rest) = place.split_at_mut(header.len());
    known.copy_from_slice(header);
    rest.fill(0);
}

impl<Q: Virtqueue + 'static> TxQueue for Tx<Q> {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        if self.ring.queue.room() <= self.reclaim_at && !self.reclaim() {
            return 0;
        }
        // With lengths known at compile time, a header is two stores.
        if self.header == net_header::LEN {
            self.post_all::<{ net_header::LEN }>(burst);
        } else {
            self.post_all::<{ net_header::LEN + 2 }>(burst);
        }
        self.ring.publish();
        if !burst.is_empty() {
            self.watch.look(self.sent, &self.ring.device.hang);
        }
        before - burst.len()
    }
}
