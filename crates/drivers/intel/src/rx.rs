//! The receive queue (sections 1.8.2 and 7.1).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Cache};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::lending::Lending;
use ringpass_port::{Error, RxQueue, WakeSource, Wakeable};

use crate::device::QueueContext;
use crate::frame::{ETHERNET_HEADER, OVERHEAD};
use crate::interrupt::Interrupt;
use crate::mapped::MappedRx;
use crate::ring::{REFILL, Ring};
use crate::rx_offload::FrameAssembler;

/// An Rx queue: a ring of advanced descriptors with free buffers.
///
/// The driver uses of each written-back descriptor only status and length (and the metadata, with offloads),
/// each read once and validated. A packet's buffer is always the one that the driver posted, never an address
/// read from the descriptor.
pub(crate) struct Rx {
    ring: Ring,
    cache: Cache,
    /// Largest valid length of a frame in one buffer, in bytes without the Ethernet header: limited by the MTU
    /// and by what a buffer holds.
    longest: usize,
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
        let cache = context.pool.cache();
        let assembler = FrameAssembler::new(context, kib as usize * 1024);
        let mut rx = Self { ring, cache, longest, assembler, interrupt, mapped: None };
        rx.refill();
        Ok(rx)
    }

    // ANCHOR: take_run
    /// Takes received packets up to the end of the ring, or up to and including the first faulty one. Returns
    /// whether more packets may follow.
    fn take_run(&mut self, burst: &mut Burst) -> bool {
        let (mut taken, mut faulty) = (0, false);
        let head = self.ring.head;
        let posted = self.ring.posted();
        let error = self.ring.device.rx_errors.mac;
        for ((descriptor, buffer), place) in self.ring.run(head, posted).zip(burst.spare()) {
            let status = descriptor[1].load(Ordering::Acquire);
            let len = (status >> RX_LENGTH_SHIFT) as u16 as usize;
            let good = status & (RX_DD | RX_EOP | error) == RX_DD | RX_EOP;
            if !good || len.wrapping_sub(ETHERNET_HEADER) > self.longest {
                faulty = status & RX_DD != 0;
                break;
            }
            // SAFETY: the descriptor is posted, so its buffer is initialised; the head moves past it below, so
            // this copy is the only one in use. `len` is at most `longest + ETHERNET_HEADER`, which `start`
            // limits to the size of the buffers (`MappedRx` rejects lent buffers that are smaller).
            place.write(unsafe { buffer.assume_init_read().into_packet(len) });
            taken += 1;
        }
        self.ring.head += taken;
        // SAFETY: the loop has written packets to the first `taken` places of `burst.spare()`.
        unsafe { burst.commit(taken) };
        if faulty {
            drop(self.ring.pop());
            self.ring.device.rx_faulty.fetch_add(1, Ordering::Relaxed);
        }
        faulty || taken > 0 && self.ring.index(self.ring.head) == 0
    }
    // ANCHOR_END: take_run

    /// Takes received frames while the burst has room, on a queue with offloads or with frames longer than a
    /// buffer. The counterpart of [`take_run`](Self::take_run).
    #[inline(never)]
    fn take_offloaded(&mut self, burst: &mut Burst) {
        let Some(assembler) = &mut self.assembler else { return };
        while burst.room() > 0 && self.ring.posted() > 0 {
            let descriptor = &self.ring.descriptors[self.ring.index(self.ring.head)];
            let status = descriptor[1].load(Ordering::Acquire);
            if status & RX_DD == 0 {
                break;
            }
            let words = [descriptor[0].load(Ordering::Relaxed), status];
            let buffer = self.ring.pop();
            // A length beyond the buffer is treated as 0, which makes the frame faulty.
            let len = Some((status >> RX_LENGTH_SHIFT) as u16 as usize)
                .filter(|&len| len <= self.longest + ETHERNET_HEADER)
                .unwrap_or(0);
            // SAFETY: `len` is at most `longest + ETHERNET_HEADER`, by the filter above; `start` limits that
            // to the size of the buffers, and `MappedRx` rejects lent buffers that are smaller.
            let mut packet = unsafe { buffer.into_packet(len) };
            let whole = status & (RX_EOP | assembler.errors.mac) == RX_EOP && len >= ETHERNET_HEADER;
            if whole && assembler.is_between() {
                assembler.set_metadata(&mut packet, words);
                burst.push(packet);
                continue;
            }
            match assembler.add(packet, words) {
                Ok(Some(packet)) => burst.push(packet),
                Ok(None) => {}
                Err(()) => drop(self.ring.device.rx_faulty.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    // ANCHOR: refill
    /// Posts free buffers in place of those taken, at least [`REFILL`] at a time. If the pool is empty, the
    /// ring stays shorter until buffers return; meanwhile the card drops frames and counts them.
    #[inline(always)]
    fn refill(&mut self) {
        let before = self.ring.tail;
        while self.ring.room() >= REFILL {
            let (tail, room) = (self.ring.tail, self.ring.room());
            let fresh = self.cache.buffers(room);
            let mut posted = 0;
            for ((descriptor, place), buffer) in self.ring.run(tail, room).zip(fresh) {
                descriptor[0].store(buffer.iova(), Ordering::Relaxed);
                descriptor[1].store(0, Ordering::Relaxed);
                place.write(buffer);
                posted += 1;
            }
            if posted == 0 {
                break;
            }
            self.ring.tail += posted;
        }
        self.ring.publish(before);
    }
    // ANCHOR_END: refill
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.room();
        match self.assembler {
            None => while self.take_run(burst) {},
            Some(_) => self.take_offloaded(burst),
        }
        let received = before - burst.room();
        match &mut self.mapped {
            None => self.refill(),
            Some(mapped) => mapped.refill(&mut self.ring, &mut self.cache, burst, received),
        }
        // Computed after the refill: a mapped queue drops packets again if its guest has gone.
        before - burst.room()
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        let least = self.longest + ETHERNET_HEADER;
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
