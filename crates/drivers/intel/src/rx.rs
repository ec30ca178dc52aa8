//! The receive queue (sections 1.8.2 and 7.1).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Avx2, Burst, Cache};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::lending::Lending;
use ringpass_port::{Error, RxQueue, WakeSource, Wakeable};

use crate::device::QueueContext;
use crate::frame::{ETHERNET_HEADER, Good, OVERHEAD};
use crate::interrupt::Interrupt;
use crate::mapped::MappedRx;
use crate::ring::{REFILL, Ring};
use crate::rx_offload::FrameAssembler;
use crate::vector;

/// An Rx queue: a ring of advanced descriptors with free buffers.
///
/// The driver uses of each written-back descriptor only status and length (and the metadata, with offloads),
/// each read once and validated. A packet's buffer is always the one that the driver posted, never an address
/// read from the descriptor.
pub(crate) struct Rx {
    ring: Ring,
    cache: Cache,
    good: Good,
    /// Present if descriptors may be read four at a time.
    vector: Option<Avx2>,
    /// Present on queues with offloads, and where a frame may need several buffers.
    assembler: Option<Box<FrameAssembler>>,
    interrupt: Option<Interrupt>,
    /// Present on queues that receive into a guest's buffers.
    mapped: Option<Box<MappedRx>>,
}

impl Rx {
    /// Enables a queue with buffers of `kib` KiB, then fills its ring and writes the tail (4.6.7.1).
    pub(crate) fn start(
        ring: Ring,
        kib: u32,
        context: QueueContext,
        interrupt: Option<Interrupt>,
    ) -> Result<Self, Error> {
        ring.start()?;
        let longest = (kib as usize * 1024).min(context.config.mtu.max(1500) + OVERHEAD) - ETHERNET_HEADER;
        let good = Good { errors: context.device.rx_errors.mac, longest };
        let cache = context.pool.cache();
        let assembler = FrameAssembler::new(context, kib as usize * 1024);
        let mut rx = Self { ring, cache, good, vector: context.config.avx2(), assembler, interrupt, mapped: None };
        rx.refill();
        Ok(rx)
    }

    /// Takes received frames and posts free buffers in place of theirs, on a queue of whole frames without offloads. Returns the
    /// number of packets.
    #[inline(always)]
    fn receive<const VECTOR: bool>(&mut self, burst: &mut Burst) -> usize {
        let before = burst.room();
        if VECTOR {
            self.take_fours(burst);
        }
        if self.take(burst) {
            self.take_rest(burst);
        }
        let received = before - burst.room();
        if self.ring.room() >= REFILL {
            self.refill();
        }
        received
    }

    /// Receives with vector instructions.
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    fn receive_many(&mut self, burst: &mut Burst) -> usize {
        self.receive::<true>(burst)
    }

    /// Takes received packets four at a time, as long as all four are good.
    #[inline(always)]
    fn take_fours(&mut self, burst: &mut Burst) {
        let (head, n) = (self.ring.head, self.ring.posted());
        let Some(avx2) = self.vector else { return };
        let (descriptors, buffers) = self.ring.run(head, n);
        // SAFETY: `avx2` is the proof that the processor has it. The descriptors are posted, so their buffers are
        // initialised; the head moves past those taken below, so the packets alone own them. `start` limits
        // `longest` to the size of the buffers (`MappedRx` rejects lent buffers that are smaller).
        let taken = unsafe { vector::take(avx2, self.good, descriptors, buffers, burst.spare()) };
        self.ring.head += taken;
        // SAFETY: `vector::take` has written packets to the first `taken` places of `burst.spare()`.
        unsafe { burst.commit(taken) };
    }

    // ANCHOR: take
    /// Takes received packets, up to and including the first faulty one. Returns whether there was one, so that more may
    /// follow.
    #[inline(always)]
    fn take(&mut self, burst: &mut Burst) -> bool {
        let (head, n) = (self.ring.head, self.ring.posted().min(burst.room()));
        let good = self.good;
        let (mut ring, places) = (self.ring.places(), burst.spare());
        let (mut taken, mut faulty) = (0, false);
        while taken < n {
            let (descriptor, buffer) = ring.at(head + taken);
            let status = descriptor[1].load(Ordering::Acquire);
            let len = (status >> RX_LENGTH_SHIFT) as u16 as usize;
            let whole = status & (RX_DD | RX_EOP | good.errors) == RX_DD | RX_EOP;
            if !whole || len.wrapping_sub(ETHERNET_HEADER) > good.longest {
                faulty = status & RX_DD != 0;
                break;
            }
            // SAFETY: the descriptor is posted, so its buffer is initialised; the head moves past it below, so
            // this copy is the only one in use. `len` is at most `longest + ETHERNET_HEADER`, which `start`
            // limits to the size of the buffers (`MappedRx` rejects lent buffers that are smaller).
            let packet = unsafe { buffer.assume_init_read().into_packet(len) };
            // SAFETY: `n` is at most the room of the burst, which is the number of places.
            unsafe { places.get_unchecked_mut(taken) }.write(packet);
            taken += 1;
        }
        self.ring.head += taken;
        // SAFETY: the loop has written packets to the first `taken` places of `burst.spare()`.
        unsafe { burst.commit(taken) };
        if faulty {
            self.drop_faulty();
        }
        faulty
    }
    // ANCHOR_END: take

    /// Takes what follows a faulty frame.
    #[cold]
    fn take_rest(&mut self, burst: &mut Burst) {
        while self.take(burst) {}
    }

    /// Takes a faulty frame's buffer out of the ring, and counts it.
    #[cold]
    fn drop_faulty(&mut self) {
        drop(self.ring.pop());
        self.ring.device.rx_faulty.fetch_add(1, Ordering::Relaxed);
    }

    /// Receives on a queue with offloads, with frames in several buffers, or with a guest's buffers.
    #[inline(never)]
    fn receive_otherwise(&mut self, burst: &mut Burst) -> usize {
        let before = burst.room();
        match self.assembler {
            None => self.take_rest(burst),
            Some(_) => self.take_offloaded(burst),
        }
        let received = before - burst.room();
        match &mut self.mapped {
            None if self.ring.room() >= REFILL => self.refill(),
            None => {}
            Some(mapped) => mapped.refill(&mut self.ring, &mut self.cache, burst, received),
        }
        // Computed after the refill: a mapped queue drops packets again if its guest has gone.
        before - burst.room()
    }

    /// Takes received frames while the burst has room, on a queue with offloads or with frames longer than a
    /// buffer. The counterpart of [`take`](Self::take).
    fn take_offloaded(&mut self, burst: &mut Burst) {
        loop {
            self.take_whole(burst);
            if burst.room() == 0 || !self.take_piece(burst) {
                break;
            }
        }
    }

    /// Takes good frames in one buffer each, with their metadata, up to the first buffer of another kind.
    #[inline(always)]
    fn take_whole(&mut self, burst: &mut Burst) {
        let Some(assembler) = self.assembler.as_ref().filter(|assembler| assembler.is_between()) else { return };
        let (head, n) = (self.ring.head, self.ring.posted().min(burst.room()));
        let good = self.good;
        let (mut ring, places) = (self.ring.places(), burst.spare());
        let mut taken = 0;
        while taken < n {
            let (descriptor, buffer) = ring.at(head + taken);
            let status = descriptor[1].load(Ordering::Acquire);
            let len = (status >> RX_LENGTH_SHIFT) as u16 as usize;
            let whole = status & (RX_DD | RX_EOP | good.errors) == RX_DD | RX_EOP;
            if !whole || len.wrapping_sub(ETHERNET_HEADER) > good.longest {
                break;
            }
            let words = [descriptor[0].load(Ordering::Relaxed), status];
            // SAFETY: the descriptor is posted, so its buffer is initialised; the head moves past it below, so this copy is
            // the only one in use. `len` is at most `longest + ETHERNET_HEADER`, which `start` limits to the size of the
            // buffers (`MappedRx` rejects lent buffers that are smaller).
            let packet = unsafe { buffer.assume_init_read().into_packet(len) };
            // SAFETY: `n` is at most the room of the burst, which is the number of places.
            let packet = unsafe { places.get_unchecked_mut(taken) }.write(packet);
            assembler.set_metadata(packet, words);
            taken += 1;
        }
        self.ring.head += taken;
        // SAFETY: the loop has written packets to the first `taken` places of `burst.spare()`.
        unsafe { burst.commit(taken) };
    }

    /// Takes one buffer, of a frame in several or of a faulty one. Returns `false` if the card has not written one back.
    #[inline(never)]
    fn take_piece(&mut self, burst: &mut Burst) -> bool {
        let Some(assembler) = self.assembler.as_mut().filter(|_| self.ring.posted() > 0) else { return false };
        let head = self.ring.head;
        let descriptor = &self.ring.descriptors[self.ring.index(head)];
        let status = descriptor[1].load(Ordering::Acquire);
        if status & RX_DD == 0 {
            return false;
        }
        let words = [descriptor[0].load(Ordering::Relaxed), status];
        // A length beyond the buffer is treated as 0, which makes the frame faulty.
        let len = Some((status >> RX_LENGTH_SHIFT) as u16 as usize)
            .filter(|&len| len <= self.good.longest + ETHERNET_HEADER)
            .unwrap_or(0);
        // SAFETY: `len` is at most `longest + ETHERNET_HEADER`, by the filter above; `start` limits that
        // to the size of the buffers, and `MappedRx` rejects lent buffers that are smaller.
        let packet = unsafe { self.ring.pop().into_packet(len) };
        match assembler.add(packet, words) {
            Ok(Some(packet)) => burst.push(packet),
            Ok(None) => {}
            Err(()) => drop(self.ring.device.rx_faulty.fetch_add(1, Ordering::Relaxed)),
        }
        true
    }

    // ANCHOR: refill
    /// Posts free buffers in place of those taken, [`REFILL`] or more at a time. If the pool is empty, the ring stays shorter
    /// until buffers return; meanwhile the card drops frames and counts them.
    #[inline(never)]
    fn refill(&mut self) {
        let before = self.ring.tail;
        while self.ring.room() >= REFILL {
            let (tail, room) = (self.ring.tail, self.ring.room());
            let (descriptors, places) = self.ring.run(tail, room);
            let fresh = self.cache.run(places.len());
            if fresh.is_empty() {
                break;
            }
            let posted = match self.vector {
                // SAFETY: `avx2` is the proof that the processor has it. `Cache::run` returns buffers, and this is the only
                // use of those that it moves.
                Some(avx2) => unsafe { vector::refill(avx2, descriptors, places, fresh) },
                None => 0,
            };
            let rest = descriptors[posted..].iter().zip(&mut places[posted..]);
            for ((descriptor, place), buffer) in rest.zip(&fresh[posted..]) {
                // SAFETY: `Cache::run` returns buffers, and each is moved to its place and used only there.
                let buffer = place.write(unsafe { buffer.assume_init_read() });
                descriptor[0].store(buffer.iova(), Ordering::Relaxed);
                descriptor[1].store(0, Ordering::Relaxed);
            }
            self.ring.tail += fresh.len();
        }
        self.ring.publish(before);
    }
    // ANCHOR_END: refill
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        if self.assembler.is_some() || self.mapped.is_some() {
            self.receive_otherwise(burst)
        } else if self.vector.is_some() && burst.room() >= 4 {
            // SAFETY: `vector` holds the proof that the processor has AVX2.
            unsafe { self.receive_many(burst) }
        } else {
            self.receive::<false>(burst)
        }
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        let least = self.good.longest + ETHERNET_HEADER;
        self.mapped = Some(Box::new(MappedRx::new(&self.ring, lending, least)?));
        Ok(())
    }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        if let Some(mapped) = &mut self.mapped {
            mapped.arm(&mut self.ring, &mut self.cache);
        }
        self.interrupt.iter().for_each(Interrupt::arm);
    }

    fn disarm(&mut self) {
        self.interrupt.iter().for_each(Interrupt::disarm);
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(self.interrupt.as_ref().map_or(WakeSource::Polled, Interrupt::wake));
    }
}
