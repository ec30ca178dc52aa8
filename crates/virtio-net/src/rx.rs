//! The receiving queue (VIRTIO 1.3, 5.1.6.3).

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_bus::Waiter;
use ringpass_memory::{Burst, Cache, Mempool, Packet};
use ringpass_port::{RxQueue, Wake, Wakeable};
use ringpass_virtio::driver::{Access, Broken, HandedOver, Unreturned, Used, Virtqueue};

use crate::gather::{Gather, Needed};
use crate::negotiate::{Agreed, Layout, SHORTEST};
use crate::ring::{Counters, Ring};

/// Buffers are given to the device by at least so many, if the ring takes that many.
const REFILL: usize = 64;

/// A queue of free buffers that the device writes frames to, each behind a header.
///
/// Of what the device says the driver believes a length, read once and checked.
pub(crate) struct Rx<Q: Virtqueue + 'static> {
    ring: Ring<Q>,
    cache: Cache,
    /// Bytes in front of the frame.
    header: usize,
    /// Bytes of a frame behind its Ethernet header.
    span: usize,
    /// Packets that are posted at most, and by how many at least.
    most: usize,
    refill: usize,
    /// Buffers of each packet.
    buffers: usize,
    gather: Gather,
    event: Option<Arc<Waiter>>,
}

impl<Q: Virtqueue + 'static> Rx<Q> {
    /// A queue that posts up to `most` buffers, in descriptors of which each takes a packet, or a part of one. The device
    /// is not told of them before [`begin`](Self::begin).
    pub(crate) fn new(ring: Ring<Q>, agreed: &Agreed, pool: &Mempool, most: usize, event: Option<Arc<Waiter>>) -> Self {
        let buffers = match agreed.layout {
            Layout::Single | Layout::Merged => 1,
            Layout::Chained(buffers) => buffers,
        };
        let each = if ring.indirect() { 1 } else { agreed.rx_tables() };
        let most = (most / buffers).min(ring.size() / each).max(1);
        let header = agreed.header;
        let span = agreed.longest_received.min(pool.buffer_size() - header) - SHORTEST;
        let refill = REFILL.min(most.div_ceil(2));
        Self {
            ring,
            cache: pool.cache(),
            header,
            span,
            most,
            refill,
            buffers,
            gather: Gather::new(agreed, pool.buffer_size()),
            event,
        }
    }

    /// Gives the device its first buffers. It is up by now: it may not be notified before (3.1.1).
    pub(crate) fn begin(&mut self) {
        self.refill();
    }

    /// What becomes readable when packets have come, if there is an interrupt.
    pub(crate) fn event(&self) -> Option<&Arc<Waiter>> {
        self.event.as_ref()
    }

    /// Asks for no interrupts any more, and leaves the event as it is.
    pub(crate) fn disarm_ring(&mut self) {
        self.ring.queue.disarm();
    }

    /// Hands the queue over to another device.
    pub(crate) fn hand_over(&mut self, rest: Unreturned) -> Result<HandedOver, Broken> {
        let result = self.ring.queue.hand_over(Access::Write, rest).inspect_err(|&broken| self.ring.fail(broken));
        // A frame of which the dead device has given back a part will not be whole.
        if result.is_ok_and(|handed| handed.untaken == 0) && self.gather.abandon() {
            Counters::add(&self.ring.counters.drops, 1);
        }
        result
    }

    /// Takes received frames behind headers that mostly say nothing of use; with `LOOK`, a header may.
    fn take_plain<const LOOK: bool>(&mut self, burst: &mut Burst) -> usize {
        let (header, least, span) = (self.header, self.header + SHORTEST, self.span);
        let (room, gather) = (burst.room(), &mut self.gather);
        let (mut bytes, mut faulty, mut joining) = (0, 0, gather.joining());
        let mut places = burst.spare().iter_mut();
        let taken = self.ring.queue.take(room, |used, written| {
            let end = written as usize;
            let plain = end.wrapping_sub(least) <= span;
            if plain && (!LOOK || !joining && gather.is_plain(used.packet())) {
                // SAFETY: posted whole; `least + span` is at most what a buffer holds (`new`).
                let packet = unsafe { used.received(header, end) };
                bytes += packet.len();
                // SAFETY: there are `room` places, and `take` calls no more often.
                unsafe { places.next().unwrap_unchecked() }.write(packet);
                return;
            }
            match odd(gather, used, end) {
                Ok(None) => {}
                Ok(Some(packet)) => {
                    bytes += packet.total_len();
                    // SAFETY: as above.
                    unsafe { places.next().unwrap_unchecked() }.write(packet);
                }
                Err(()) => faulty += 1,
            }
            joining = gather.joining();
        });
        let packets = room - places.len();
        // SAFETY: as many places were written, from the first on.
        unsafe { burst.commit(packets) };
        self.count(packets, bytes as u64, faulty, taken.err());
        packets
    }

    /// Likewise, by what headers say.
    #[inline(never)]
    fn take_gathered(&mut self, burst: &mut Burst) -> usize {
        let gather = &mut self.gather;
        let (before, mut bytes, mut faulty) = (burst.len(), 0, 0);
        let taken =
            self.ring.queue.take(burst.room(), |used, written| match gather.add(used.whole(), written as usize) {
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

    /// Posts free buffers in place of those taken. When the pool has run dry the ring runs shorter until buffers come
    /// back.
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
            let posted = if self.buffers == 1 {
                self.ring.queue.post_run(Access::Write, self.cache.packets(room))
            } else {
                self.post_chain()
            };
            if posted == 0 {
                break;
            }
            room -= posted;
        }
        self.ring.publish();
    }

    /// Posts one packet of several buffers.
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
        self.ring.queue.post_chain(Access::Write, packet).map_or(0, |()| 1)
    }
}

/// A frame that lies in several buffers, or is faulty.
#[cold]
#[inline(never)]
fn odd(gather: &mut Gather, used: Used, written: usize) -> Result<Option<Packet>, ()> {
    gather.add(used.whole(), written)
}

impl<Q: Virtqueue + 'static> RxQueue for Rx<Q> {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let packets = match self.gather.needed() {
            Needed::No => self.take_plain::<false>(burst),
            Needed::IfSpecial => self.take_plain::<true>(burst),
            Needed::Always => self.take_gathered(burst),
        };
        self.refill();
        packets
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

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(self.event.as_ref().map_or(Wake::Turns, |event| Wake::Readable(event.as_fd())));
    }
}
