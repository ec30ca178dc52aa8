//! The receive queue (VIRTIO 1.3, 5.1.6.3).

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_memory::{Burst, Cache, Mempool, Packet};
use ringpass_pci::EventWaiter;
use ringpass_port::{RxQueue, WakeSource, Wakeable};
use ringpass_virtio::driver::{Broken, DeviceAccess, HandedOver, InflightPolicy, Used, Virtqueue};
use ringpass_virtio::net_header;

use crate::assembler::{FrameAssembler, Needed};
use crate::negotiate::{MIN_FRAME_LEN, Negotiated, RxLayout};
use crate::ring::{Counters, Ring};
use crate::vector;

/// Smallest number of buffers posted at once, if the ring has room for that many.
const REFILL: usize = 64;

/// An Rx queue: a virtqueue of free buffers, into which the device writes frames with a header in front.
///
/// The length that the device reports is read once and validated.
pub(crate) struct Rx<Q: Virtqueue + 'static> {
    ring: Ring<Q>,
    cache: Cache,
    /// Length in bytes of the header in front of each frame.
    header: usize,
    /// Largest valid length of a frame in one buffer, in bytes without the Ethernet header.
    span: usize,
    /// Largest number of packets posted, and smallest number posted at once.
    most: usize,
    refill: usize,
    /// Buffers per posted packet.
    buffers: usize,
    assembler: FrameAssembler,
    event: Option<Arc<EventWaiter>>,
}

impl<Q: Virtqueue + 'static> Rx<Q> {
    /// Creates a queue that posts up to `most` buffers; fewer if the ring does not have enough descriptors for
    /// them. The device gets no buffers before [`begin`](Self::begin).
    pub(crate) fn new(
        ring: Ring<Q>,
        negotiated: &Negotiated,
        pool: &Mempool,
        most: usize,
        event: Option<Arc<EventWaiter>>,
    ) -> Self {
        let buffers = match negotiated.layout {
            RxLayout::Single | RxLayout::Merged => 1,
            RxLayout::Chained(buffers) => buffers,
        };
        let each = if ring.indirect() { 1 } else { negotiated.rx_tables() };
        let most = (most / buffers).min(ring.size() / each).max(1);
        let header = negotiated.header;
        let span = negotiated.max_rx_len.min(pool.buffer_size() - header) - MIN_FRAME_LEN;
        let refill = REFILL.min(most.div_ceil(2));
        Self {
            ring,
            cache: pool.cache(),
            header,
            span,
            most,
            refill,
            buffers,
            assembler: FrameAssembler::new(negotiated, pool.buffer_size()),
            event,
        }
    }

    /// Posts the first buffers. To be called when the device is up (DRIVER_OK), as it must not be notified
    /// before (3.1.1).
    pub(crate) fn begin(&mut self) {
        self.refill();
    }

    /// Returns the eventfd that becomes readable when packets have arrived, if the queue has an interrupt.
    pub(crate) fn event(&self) -> Option<&Arc<EventWaiter>> {
        self.event.as_ref()
    }

    /// Disables interrupts, without clearing the event.
    pub(crate) fn disarm_ring(&mut self) {
        self.ring.queue.disarm();
    }

    /// Hands the queue over to another device.
    pub(crate) fn hand_over(&mut self, rest: InflightPolicy) -> Result<HandedOver, Broken> {
        let result = self.ring.queue.hand_over(DeviceAccess::Write, rest).inspect_err(|&broken| self.ring.fail(broken));
        // A frame of which the dead device returned only some buffers will never be complete.
        if result.is_ok_and(|handed| handed.untaken == 0) && self.assembler.abandon() {
            Counters::add(&self.ring.counters.drops, 1);
        }
        result
    }

    /// Takes received frames whose header can mostly be ignored. With `LOOK`, each header is inspected for
    /// exceptions.
    #[inline(always)]
    fn take_plain<const VECTOR: bool, const LOOK: bool, const HEADER: usize>(&mut self, burst: &mut Burst) -> usize {
        let before = burst.room();
        if VECTOR {
            self.take_fours::<LOOK, HEADER>(burst);
        }
        if burst.room() > 0 {
            self.take_rest::<LOOK, HEADER>(burst);
        }
        before - burst.room()
    }

    /// Takes received frames four at a time, while the header of all four can be ignored.
    #[inline(always)]
    fn take_fours<const LOOK: bool, const HEADER: usize>(&mut self, burst: &mut Burst) {
        let Some(avx2) = self.ring.device.vector.filter(|_| !LOOK || !self.assembler.joining()) else { return };
        let assembler = &self.assembler;
        let is_plain = |packet: &Packet| !LOOK || assembler.is_plain(packet);
        // SAFETY: `avx2` is the proof that the processor has it. This path is not used with chained buffers
        // (`Needed::Always`), so packets are as `post_buffers` made them, which is as `Cache::packets` does. A header with a frame of
        // `span` bytes beyond the shortest one fits into the pool's buffers (`new`).
        let taken =
            unsafe { vector::take::<Q, HEADER>(avx2, &mut self.ring.queue, self.span, burst.spare(), is_plain) };
        // SAFETY: `vector::take` has written so many packets to the first places of `burst.spare()`.
        unsafe { burst.commit(taken.packets) };
        self.count(taken.packets, taken.bytes, 0, None);
    }

    /// Takes received frames one at a time.
    #[inline(always)]
    fn take_rest<const LOOK: bool, const HEADER: usize>(&mut self, burst: &mut Burst) {
        let least = HEADER + MIN_FRAME_LEN;
        let span = self.span;
        let (room, assembler) = (burst.room(), &mut self.assembler);
        let mut bytes = 0;
        let mut faulty = 0;
        let mut joining = assembler.joining();
        let mut places = burst.spare().iter_mut();
        let taken = self.ring.queue.take(room, |used, written| {
            let end = written as usize;
            let plain = end.wrapping_sub(least) <= span;
            if plain && (!LOOK || !joining && assembler.is_plain(used.packet())) {
                // SAFETY: this path is not used with chained buffers (`Needed::Always`), so the packet is
                // as `post_buffers` made it, which is as `Cache::packets` does. `plain` means `HEADER <= end <= least + span`, which
                // is at most the pool's buffer size (`new`).
                let packet = unsafe { used.received(HEADER, end) };
                bytes += packet.len();
                // SAFETY: there are `room` places, `take` calls this closure at most `room` times (contract of
                // `Virtqueue`), and each call uses at most one place.
                unsafe { places.next().unwrap_unchecked() }.write(packet);
                return;
            }
            match assemble(assembler, used, end) {
                Ok(None) => {}
                Ok(Some(packet)) => {
                    bytes += packet.total_len();
                    // SAFETY: there are `room` places, `take` calls this closure at most `room` times (contract
                    // of `Virtqueue`), and each call uses at most one place.
                    unsafe { places.next().unwrap_unchecked() }.write(packet);
                }
                Err(()) => faulty += 1,
            }
            joining = assembler.joining();
        });
        let packets = room - places.len();
        // SAFETY: the closure has written packets to the first `packets` places of `burst.spare()`, in order.
        unsafe { burst.commit(packets) };
        self.count(packets, bytes as u64, faulty, taken.err());
    }

    /// Takes received frames, and posts free buffers in place of theirs.
    #[inline(always)]
    fn receive<const VECTOR: bool>(&mut self, burst: &mut Burst) -> usize {
        const LONG: usize = net_header::LEN + 2;
        const SHORT: usize = net_header::LEN;
        // With a length known at compile time, removing a header takes fewer instructions.
        let packets = match (self.assembler.needed(), self.header) {
            (Needed::No, LONG) => self.take_plain::<VECTOR, false, LONG>(burst),
            (Needed::IfSpecial, LONG) => self.take_plain::<VECTOR, true, LONG>(burst),
            (Needed::No | Needed::IfSpecial, SHORT) => self.take_plain::<VECTOR, true, SHORT>(burst),
            _ => self.take_gathered(burst),
        };
        self.refill();
        packets
    }

    /// Receives with vector instructions.
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    fn receive_many(&mut self, burst: &mut Burst) -> usize {
        self.receive::<true>(burst)
    }

    /// Takes received frames whose header must always be processed.
    #[inline(never)]
    fn take_gathered(&mut self, burst: &mut Burst) -> usize {
        let assembler = &mut self.assembler;
        let before = burst.len();
        let mut bytes = 0;
        let mut faulty = 0;
        let taken =
            self.ring.queue.take(burst.room(), |used, written| match assembler.add(used.whole(), written as usize) {
                Ok(Some(packet)) => {
                    bytes += packet.total_len() as u64;
                    burst.push(packet);
                }
                Ok(None) => {}
                Err(()) => faulty += 1,
            });
        let packets = burst.len() - before;
        self.count(packets, bytes, faulty, taken.err());
        packets
    }

    #[inline]
    fn count(&self, packets: usize, bytes: u64, faulty: u64, broken: Option<Broken>) {
        if packets > 0 {
            Counters::add(&self.ring.counters.packets, packets as u64);
            Counters::add(&self.ring.counters.bytes, bytes);
        }
        if faulty > 0 {
            Counters::add(&self.ring.counters.drops, faulty);
        }
        if let Some(broken) = broken {
            self.ring.fail(broken);
        }
    }

    /// Posts free buffers in place of those taken. If the pool is empty, the ring stays shorter until buffers
    /// return.
    #[inline(always)]
    fn refill(&mut self) {
        let room = self.most - self.ring.queue.posted().min(self.most);
        if room >= self.refill {
            self.post(room);
        }
    }

    #[inline(never)]
    fn post(&mut self, mut room: usize) {
        while room > 0 {
            let posted = if self.buffers == 1 { self.post_buffers(room) } else { self.post_chain() };
            if posted == 0 {
                break;
            }
            room -= posted;
        }
        self.ring.publish();
    }

    /// Posts packets of one buffer each. Returns how many.
    #[inline(always)]
    fn post_buffers(&mut self, room: usize) -> usize {
        if let Some(avx2) = self.ring.device.vector {
            // SAFETY: `avx2` is the proof that the processor has AVX2.
            let posted = unsafe { vector::refill(avx2, &mut *self.ring.queue, &mut self.cache, room) };
            if posted > 0 {
                return posted;
            }
        }
        let size = self.cache.pool().buffer_size();
        let mut buffers = self.cache.buffers(room);
        self.ring.queue.post_each(DeviceAccess::Write, buffers.len(), |_| {
            // SAFETY: `post_each` calls this closure at most `buffers.len()` times (contract of `Virtqueue`), and each
            // call takes one buffer. `size` is the pool's buffer size.
            Some(unsafe { buffers.next().unwrap_unchecked().into_packet(size) })
        })
    }

    /// Posts one packet of several buffers. Returns how many were posted, 0 or 1.
    fn post_chain(&mut self) -> usize {
        let mut pieces = self.cache.packets(self.buffers);
        let Some(mut packet) = pieces.next() else { return 0 };
        let (mut last, mut count) = (&mut packet, 1);
        for piece in pieces.by_ref() {
            (last, count) = (last.push_segment(piece), count + 1);
        }
        if count < self.buffers {
            return 0;
        }
        self.ring.queue.post_chain(DeviceAccess::Write, packet).map_or(0, |()| 1)
    }
}

/// Processes a frame that lies in several buffers or is faulty.
#[cold]
#[inline(never)]
fn assemble(assembler: &mut FrameAssembler, used: Used, written: usize) -> Result<Option<Packet>, ()> {
    assembler.add(used.whole(), written)
}

impl<Q: Virtqueue + 'static> RxQueue for Rx<Q> {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        if self.ring.device.vector.is_some() && burst.room() >= 4 {
            // SAFETY: `vector` holds the proof that the processor has AVX2.
            unsafe { self.receive_many(burst) }
        } else {
            self.receive::<false>(burst)
        }
    }
}

impl<Q: Virtqueue + 'static> Wakeable for Rx<Q> {
    fn arm(&mut self) {
        if self.event.is_some() {
            self.ring.queue.arm();
        }
    }

    fn disarm(&mut self) {
        if let Some(event) = &self.event {
            self.ring.queue.disarm();
            event.clear();
        }
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(self.event.as_ref().map_or(WakeSource::Polled, |event| WakeSource::Readable(event.as_fd())));
    }
}
