//! The receiving ring (sections 1.8.2 and 7.1).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Cache, DmaRegion, Mempool};
use ringpass_port::{Error, PortConfig, RxQueue};
use ringpass_registers::Doorbell;
use ringpass_registers::ixgbe::{bits::*, descriptor::*, *};

use crate::Device;
use crate::ring::Ring;

/// Descriptors are given back to the card by at least so many.
const REFILL: usize = 32;
/// A frame that is shorter has no type.
const ETHERNET_HEADER: usize = 14;

/// A ring of advanced Rx descriptors with free buffers behind them.
///
/// Of what the card writes the driver believes a status and a length, each read once and checked; a packet's buffer
/// is the one that was posted.
pub(crate) struct RxRing {
    ring: Ring,
    cache: Cache,
    /// Bytes behind the Ethernet header that are believed at most: what a buffer has room for.
    longest: usize,
    tail: Doorbell,
    queue: usize,
    device: Arc<Device>,
}

impl RxRing {
    /// Section 4.6.7.1: base, length and buffer size; enable; then fill and move the tail.
    pub(crate) fn start(
        device: &Arc<Device>,
        queue: usize,
        (rings, offset): (&Arc<DmaRegion>, usize),
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Self, Error> {
        let ring = Ring::new(rings, offset, config.rx_ring)?;
        let iova = ring.descriptors.iova();
        let window = &device.window;
        // SAFETY: the ring was mapped for the card, and is kept until `drop` has stopped the queue.
        unsafe {
            window.write_dma(RDBAL.at(queue), iova as u32);
            window.write_dma(RDBAH.at(queue), (iova >> 32) as u32);
        }
        window.write(RDLEN.at(queue), (config.rx_ring * 16) as u32);
        // 8.2.3.8.7: buffers of so many KiB; a queue without descriptors drops rather than hold up the others.
        let kib = (pool.buffer_size() / 1024) as u32 & SRRCTL_BSIZEPACKET;
        window.write(SRRCTL.at(queue), SRRCTL_DESCTYPE_ADV_ONEBUF | SRRCTL_DROP_EN | kib);
        window.write(RDH.at(queue), 0);
        window.write(RDT.at(queue), 0);
        let tail = window.doorbell(RDT.at(queue));
        let longest = pool.buffer_size() - ETHERNET_HEADER;
        let mut rx = Self { ring, cache: pool.cache(), longest, tail, queue, device: device.clone() };
        device.enable(RXDCTL.at(queue), RXDCTL_ENABLE)?;
        rx.refill();
        Ok(rx)
    }

    /// Takes received packets, up to the ring's end or the first faulty one. Returns how many.
    fn take_run(&mut self, burst: &mut Burst) -> usize {
        let run = self.ring.posted_run();
        let (mut taken, mut faulty) = (0, false);
        for ((descriptor, buffer), place) in self.ring.run(run).zip(burst.spare()) {
            let status = descriptor[1].load(Ordering::Acquire);
            let len = (status >> RX_LENGTH_SHIFT) as u16 as usize;
            let good = status & (RX_DD | RX_EOP | RX_RXE) == RX_DD | RX_EOP;
            if !good || len.wrapping_sub(ETHERNET_HEADER) > self.longest {
                faulty = status & RX_DD != 0;
                break;
            }
            // SAFETY: the descriptor is posted, so the buffer is initialised; this copy of it is the only one used, as
            // the head moves past it below. The length was checked.
            place.write(unsafe { buffer.assume_init_read().into_packet(len) });
            taken += 1;
        }
        self.ring.head += taken;
        // SAFETY: as many places were written.
        unsafe { burst.commit(taken) };
        if faulty {
            drop(self.ring.pop());
            self.device.rx_faulty.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Posts free buffers in place of those taken, by [`REFILL`] or more. When the pool has run dry the ring runs
    /// shorter until buffers come back; meanwhile the card drops and counts.
    fn refill(&mut self) {
        let before = self.ring.tail;
        while self.ring.room() >= REFILL {
            let run = self.ring.free_run();
            let fresh = self.cache.buffers(run.len());
            let mut posted = 0;
            for ((descriptor, place), buffer) in self.ring.run(run).zip(fresh) {
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
        if self.ring.tail != before {
            self.tail.ring(self.ring.index(self.ring.tail) as u32);
        }
    }
}

impl RxQueue for RxRing {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut received = 0;
        loop {
            let head = self.ring.head;
            received += self.take_run(burst);
            // Again only past a faulty frame or the ring's end.
            if self.ring.head == head || self.ring.head == head + received && self.ring.index(self.ring.head) != 0 {
                break;
            }
        }
        self.refill();
        received
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        // A card that does not stop may still write: then its memory is never given back.
        if self.device.disable(RXDCTL.at(self.queue), RXDCTL_ENABLE).is_err() {
            self.ring.leak();
        }
    }
}
