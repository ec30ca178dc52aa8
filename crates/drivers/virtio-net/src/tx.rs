//! The transmit queue (VIRTIO 1.3, 5.1.6.2).

use std::mem::ManuallyDrop;

use ringpass_memory::{Avx2, Burst, Cache, Drain, Flags, Mempool, Packet, Reclaimer};
use ringpass_port::{TxQueue, TxWatchdog};
use ringpass_virtio::driver::{Broken, DeviceAccess, HandedOver, InflightPolicy, Virtqueue};
use ringpass_virtio::features::HOST_ECN;
use ringpass_virtio::net_header;

use crate::empty_header::{REQUESTS, write_zeros};
use crate::negotiate::{MAX_SEGMENTS, MIN_FRAME_LEN, Negotiated};
use crate::ring::{Counters, Ring};
use crate::vector;

/// Buffers are reclaimed once this many descriptors are in use, or half of a smaller ring's.
const RECLAIM: usize = 64;

/// A Tx queue: a virtqueue of packets that the device has yet to read, each with a header in front.
pub(crate) struct Tx<Q: Virtqueue + 'static> {
    ring: Ring<Q>,
    reclaimer: Reclaimer,
    header: usize,
    /// Buffers are reclaimed when this many or fewer descriptors are free.
    reclaim_at: usize,
    special: Special,
    sent: u64,
    watchdog: TxWatchdog,
}

/// Parameters for packets that request offloads or lie in several buffers.
struct Special {
    /// Longest frame in bytes.
    longest: usize,
    /// Source of buffers for headers, for packets without headroom.
    cache: Cache,
    /// Requests that the device can carry out.
    hardware: Flags,
    /// Whether the device accepts segments with congestion marks (HOST_ECN).
    ecn: bool,
    /// Whether the header needs a descriptor of its own, even where it is in front of the frame.
    separate_header: bool,
    /// Largest number of pieces of a packet, including its header; and whether they take one descriptor
    /// together.
    pieces: usize,
    indirect: bool,
}

impl<Q: Virtqueue + 'static> Tx<Q> {
    /// Creates a queue with the negotiated features.
    pub(crate) fn new(ring: Ring<Q>, negotiated: &Negotiated, pool: &Mempool) -> Self {
        let (size, indirect) = (ring.size(), ring.indirect());
        let pieces = if indirect { negotiated.tx_tables() } else { MAX_SEGMENTS + 1 }.min(size);
        let (hardware, ecn) = (negotiated.hardware(), negotiated.has(HOST_ECN));
        let separate_header = negotiated.separate_header;
        let (cache, longest) = (pool.cache(), negotiated.max_tx_len);
        let special = Special { longest, cache, hardware, ecn, separate_header, pieces, indirect };
        let header = negotiated.header;
        let reclaim_at = size - RECLAIM.min(size.div_ceil(2));
        let (reclaimer, watchdog) = Default::default();
        Self { ring, reclaimer, header, reclaim_at, special, sent: 0, watchdog }
    }

    /// Hands the queue over to another device.
    pub(crate) fn hand_over(&mut self, rest: InflightPolicy) -> Result<HandedOver, Broken> {
        self.ring.queue.hand_over(DeviceAccess::Read, rest).inspect_err(|&broken| self.ring.fail(broken))
    }

    /// Reclaims the buffers of packets that the device has read. Returns `false` if it violated the protocol.
    #[inline(never)]
    fn reclaim(&mut self) -> bool {
        match self.ring.queue.reclaim_used(self.ring.device.vector, &mut self.reclaimer) {
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

    /// Posts as many packets as there is room for.
    #[inline(always)]
    fn post<const HEADER: usize>(&mut self, burst: &mut Burst) {
        if let Some(avx2) = self.ring.device.vector {
            // SAFETY: `avx2` is the proof that the processor has AVX2.
            unsafe { self.post_fours::<HEADER>(avx2, burst) };
        }
        if !burst.is_empty() {
            self.post_all::<HEADER>(burst);
        }
    }

    /// Posts plain packets four at a time.
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    fn post_fours<const HEADER: usize>(&mut self, avx2: Avx2, burst: &mut Burst) {
        let span = self.special.longest - MIN_FRAME_LEN;
        let posted = vector::post::<Q, HEADER>(avx2, &mut self.ring.queue, span, burst);
        // SAFETY: the first packets, as many as were posted, belong to the ring now.
        unsafe { burst.forget(posted.packets) };
        self.count(posted.packets, posted.bytes as usize);
    }

    /// Posts as many packets as there is room for. Not inlined, so that its loop has registers enough.
    #[inline(never)]
    fn post_all<const HEADER: usize>(&mut self, burst: &mut Burst) {
        loop {
            let longest = self.special.longest - MIN_FRAME_LEN;
            let waiting: &[Packet] = burst;
            let (mut bytes, mut copied) = (0, 0);
            let packets = self.ring.queue.post_each(DeviceAccess::Read, waiting.len(), |at| {
                // SAFETY: `post_each` passes numbers below `waiting.len()` (contract of `Virtqueue`).
                let packet = unsafe { waiting.get_unchecked(at) };
                let plain = !packet.flags().any(REQUESTS) && !packet.is_chained();
                if !plain || packet.len().wrapping_sub(MIN_FRAME_LEN) > longest {
                    return None;
                }
                // SAFETY: `burst.forget` below forgets the packets that were copied, and nothing in between can
                // panic.
                let packet = unsafe { copy_with_zeroed_header::<HEADER>(packet) }?;
                bytes += packet.len();
                copied = at + 1;
                Some(packet)
            });
            // SAFETY: `post_each` calls the closure with 0, 1, 2 and so on (contract of `Virtqueue`), so these
            // are the packets that were copied, and only the copies are used from here on.
            unsafe { burst.forget(copied) };
            self.count(packets, bytes - packets * HEADER);
            let full = burst.is_empty() || self.ring.queue.room() == 0;
            if full || !(self.post_requests(burst) || self.post_slow(burst)) {
                break;
            }
        }
    }

    /// Posts packets from the front of the burst that lie in one buffer, whatever they request. Returns `false`
    /// if the first packet is not one of these.
    #[inline(never)]
    fn post_requests(&mut self, burst: &mut Burst) -> bool {
        let mut drain = burst.drain();
        let special = &self.special;
        let header = self.header;
        let mut bytes = 0;
        let requests = std::iter::from_fn(|| {
            let packet = special.next_request(&mut drain, header)?;
            bytes += packet.len();
            Some(packet)
        });
        let packets = self.ring.queue.post_run(DeviceAccess::Read, requests);
        drop(drain);
        self.count(packets, bytes - packets * self.header);
        packets > 0
    }

    /// Counts posted packets. `bytes` does not include their headers.
    #[inline]
    fn count(&self, packets: usize, bytes: usize) {
        if packets > 0 {
            Counters::add(&self.ring.counters.packets, packets as u64);
            Counters::add(&self.ring.counters.bytes, bytes as u64);
        }
    }

    /// Posts the first packet, which takes more than one buffer, or drops it if it can never be sent. Returns
    /// `false` if there is no room for it now.
    #[inline(never)]
    fn post_slow(&mut self, burst: &mut Burst) -> bool {
        let Some(packet) = burst.first() else { return false };
        let counters = &self.ring.counters;
        let len = packet.total_len();
        let apart = packet.headroom() < self.header;
        let pieces = packet.segments().count() + usize::from(apart || self.special.separate_header);
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
        if packet.is_some_and(|packet| self.ring.queue.post_chain(DeviceAccess::Read, packet).is_ok()) {
            Counters::add(&counters.packets, 1);
            Counters::add(&counters.bytes, len as u64);
        } else {
            Counters::add(&counters.drops, 1);
        }
        true
    }
}

impl Special {
    /// Returns the next packet with its header, if it lies in one buffer with room for the header and can be
    /// sent.
    #[inline]
    fn next_request(&self, drain: &mut Drain, header: usize) -> Option<Packet> {
        let single = |packet: &Packet| !packet.is_chained() && packet.headroom() >= header;
        let packet = drain.next_if(|packet| single(packet) && self.sendable(packet, packet.len()))?;
        self.with_header(packet, None, header)
    }

    /// Returns whether a packet can ever be sent; does not check its number of pieces.
    fn sendable(&self, packet: &Packet, len: usize) -> bool {
        let requests = packet.flags().and(REQUESTS);
        let headers = packet.headers().unwrap_or_default();
        let payload = headers.payload_start();
        if requests.without(self.hardware) != Flags::default()
            || packet.len() < payload.max(MIN_FRAME_LEN)
            || packet.segments().any(|segment| segment.is_empty())
        {
            return false;
        }
        match packet.mss() {
            // Only the IP packet is segmented, and its length has a limit of its own.
            Some(mss) => {
                let ip = len - usize::from(headers.l2);
                mss > 0 && payload + usize::from(mss) <= self.longest && ip <= 65_535 && len > payload
            }
            None => len <= self.longest,
        }
    }

    /// Writes the header in front of a packet, or into `spare` if that is given. Returns `None` if there is no
    /// headroom.
    fn with_header(&self, mut packet: Packet, spare: Option<Packet>, len: usize) -> Option<Packet> {
        const GSO_ECN: u8 = 0x80;
        const CWR: u8 = 0x80;
        // Flags that describe a received frame must not be passed to the device (5.1.6.2.1).
        packet.clear_flags(Flags::L4_GOOD);
        let mut header = net_header::encode(&packet);
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

/// Returns a copy of the packet's handle with `N` bytes of zeros in front of the frame; `None` if there is less headroom.
///
/// # Safety
/// If a copy is returned, the packet must be forgotten: neither used nor dropped.
#[inline(always)]
unsafe fn copy_with_zeroed_header<const N: usize>(packet: &Packet) -> Option<Packet> {
    // SAFETY: the original is forgotten if the copy is returned, by this function's contract. Otherwise the copy is
    // not dropped (`ManuallyDrop`).
    let mut copy = ManuallyDrop::new(unsafe { std::ptr::read(packet) });
    if !copy.prepend(N) {
        return None;
    }
    // SAFETY: `prepend` has checked that there were `N` bytes of headroom before the frame, which the packet owns.
    unsafe { write_zeros::<N>(packet.as_ptr()) };
    Some(ManuallyDrop::into_inner(copy))
}

/// Writes a header of `len` bytes. The number of buffers, if the header has that field, is left 0: it is for
/// the device to write.
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
        // With a length known at compile time, writing a header takes two stores.
        if self.header == net_header::LEN {
            self.post::<{ net_header::LEN }>(burst);
        } else {
            self.post::<{ net_header::LEN + 2 }>(burst);
        }
        self.ring.publish();
        if !burst.is_empty() {
            self.watchdog.check(self.sent, &self.ring.device.hang);
        }
        before - burst.len()
    }
}
