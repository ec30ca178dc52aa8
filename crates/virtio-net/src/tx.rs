//! The sending queue (VIRTIO 1.3, 5.1.6.2).

use ringpass_memory::{Burst, Cache, Drain, Flags, Mempool, Packet, Reclaimer};
use ringpass_port::TxQueue;
use ringpass_virtio::driver::{Access, Broken, HandedOver, Unreturned, Virtqueue};
use ringpass_virtio::features::HOST_ECN;
use ringpass_virtio::net_header;

use crate::hang::Watch;
use crate::negotiate::{Agreed, MOST_PIECES, SHORTEST};
use crate::ring::{Counters, Ring};

/// Buffers are reclaimed by so many, if the ring has that many.
const RECLAIM: usize = 64;
/// What packets may ask of the device.
const REQUESTS: Flags = Flags::CHECKSUM.or(Flags::TSO);

/// A queue of packets that the device has yet to read, each with a header in front.
pub(crate) struct Tx<Q: Virtqueue + 'static> {
    ring: Ring<Q>,
    reclaimer: Reclaimer,
    header: usize,
    /// With no more free descriptors than this, buffers are reclaimed.
    reclaim_at: usize,
    special: Special,
    sent: u64,
    watch: Watch,
}

/// What packets need that ask for something, or lie in several buffers.
struct Special {
    /// Bytes of a frame at most.
    longest: usize,
    /// Headers for packets without headroom.
    cache: Cache,
    /// What packets may ask of the device.
    hardware: Flags,
    /// The device is told of congestion.
    ecn: bool,
    /// The header takes a descriptor of its own, wherever it lies.
    header_apart: bool,
    /// Pieces of a packet at most, with one for the header; and whether they take one descriptor together.
    pieces: usize,
    indirect: bool,
}

impl<Q: Virtqueue + 'static> Tx<Q> {
    /// A queue that sends as was agreed.
    pub(crate) fn new(ring: Ring<Q>, agreed: &Agreed, pool: &Mempool) -> Self {
        let (size, indirect) = (ring.size(), ring.indirect());
        let pieces = if indirect { agreed.tx_tables() } else { MOST_PIECES + 1 }.min(size);
        let (hardware, ecn) = (agreed.hardware(), agreed.has(HOST_ECN));
        let header_apart = agreed.header_apart;
        let (cache, longest) = (pool.cache(), agreed.longest_sent);
        let special = Special { longest, cache, hardware, ecn, header_apart, pieces, indirect };
        let header = agreed.header;
        let reclaim_at = size - RECLAIM.min(size.div_ceil(2));
        let (reclaimer, watch) = Default::default();
        Self { ring, reclaimer, header, reclaim_at, special, sent: 0, watch }
    }

    /// Hands the queue over to another device.
    pub(crate) fn hand_over(&mut self, rest: Unreturned) -> Result<HandedOver, Broken> {
        self.ring.queue.hand_over(Access::Read, rest).inspect_err(|&broken| self.ring.fail(broken))
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
        loop {
            let (mut drain, longest, mut bytes) = (burst.drain(), self.special.longest, 0);
            let plain = std::iter::from_fn(|| {
                let packet = drain.next_behind_zeros::<HEADER>(REQUESTS, SHORTEST..=longest)?;
                bytes += packet.len();
                Some(packet)
            });
            let packets = self.ring.queue.post_run(Access::Read, plain);
            drop(drain);
            self.count(packets, bytes);
            let full = burst.is_empty() || self.ring.queue.room() == 0;
            if full || !(self.post_requests(burst) || self.post_special(burst)) {
                break;
            }
        }
    }

    /// Posts packets from here on that lie in one buffer, whatever they ask for; `false` if the first is none of these.
    #[inline(never)]
    fn post_requests(&mut self, burst: &mut Burst) -> bool {
        let (mut drain, special, header, mut bytes) = (burst.drain(), &self.special, self.header, 0);
        let requests = std::iter::from_fn(|| {
            let packet = special.next_request(&mut drain, header)?;
            bytes += packet.len();
            Some(packet)
        });
        let packets = self.ring.queue.post_run(Access::Read, requests);
        drop(drain);
        self.count(packets, bytes);
        packets > 0
    }

    /// Counts packets that were posted, with the bytes of their headers.
    #[inline]
    fn count(&self, packets: usize, bytes: usize) {
        if packets > 0 {
            Counters::add(&self.ring.counters.packets, packets as u64);
            Counters::add(&self.ring.counters.bytes, (bytes - packets * self.header) as u64);
        }
    }

    /// Posts the first packet, which takes more than a buffer, or drops it if it cannot be sent. `false` if
    /// there is no room for it now.
    #[inline(never)]
    fn post_special(&mut self, burst: &mut Burst) -> bool {
        let Some(packet) = burst.first() else { return false };
        let counters = &self.ring.counters;
        let len = packet.total_len();
        let apart = packet.headroom() < self.header;
        let pieces = packet.segments().count() + usize::from(apart || self.special.header_apart);
        if !self.special.sendable(packet, len) || pieces > self.special.pieces {
            burst.discard(1);
            Counters::add(&counters.drops, 1);
            return true;
        }
        let needed = if self.special.indirect { 1 } else { pieces };
        if self.ring.queue.room() < needed {
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
}

impl Special {
    /// The next packet behind its header, if it lies in one buffer with room for that and can be sent.
    #[inline]
    fn next_request(&self, drain: &mut Drain, header: usize) -> Option<Packet> {
        let single = |packet: &Packet| !packet.is_chained() && packet.headroom() >= header;
        let packet = drain.next_if(|packet| single(packet) && self.sendable(packet, packet.len()))?;
        self.with_header(packet, None, header)
    }

    /// Whether a packet can ever be sent, but for the number of its pieces.
    fn sendable(&self, packet: &Packet, len: usize) -> bool {
        let requests = packet.flags().and(REQUESTS);
        let headers = packet.headers().unwrap_or_default();
        let payload = headers.payload_start();
        if requests.without(self.hardware) != Flags::default()
            || packet.len() < payload.max(SHORTEST)
            || packet.segments().any(|segment| segment.is_empty())
        {
            return false;
        }
        match packet.mss() {
            // What is cut is an IP packet, which has a longest length of its own.
            Some(mss) => {
                let ip = len - usize::from(headers.l2);
                mss > 0 && payload + usize::from(mss) <= self.longest && ip <= 65_535 && len > payload
            }
            None => len <= self.longest,
        }
    }

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
            && packet.array(headers.l4_start() + 13).is_some_and(|[flags]| flags & CWR != 0)
        {
            header[1] |= GSO_ECN;
        }
        let Some(mut apart) = spare else {
            return packet.prepend(len).then(|| {
                write_header(&mut packet, &header, len);
                packet
            });
        };
        apart.set_len(len);
        write_header(&mut apart, &header, len);
        apart.append(packet);
        Some(apart)
    }
}

/// Writes a header of `len` bytes, with or without the number of buffers, which is for the device to write.
fn write_header(packet: &mut Packet, header: &[u8; net_header::LEN], len: usize) {
    packet.write(0, header);
    packet.write(header.len(), &[0; 2][..len - header.len()]);
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
