//! The receiving queue (sections 1.8.2 and 7.1).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Cache, Lending};
use ringpass_port::{Error, RxQueue};
use ringpass_registers::ixgbe::descriptor::*;

use crate::device::Setup;
use crate::interrupt::Interrupt;
use crate::mapped::Mapped;
use crate::ring::Ring;
use crate::rx_offload::Gather;
use crate::tx::OVERHEAD;

/// Descriptors are given back to the card by at least so many.
pub(crate) const REFILL: usize = 32;
/// A frame that is shorter has no type.
pub(crate) const ETHERNET_HEADER: usize = 14;

/// A ring of advanced Rx descriptors with free buffers behind them.
///
/// Of what the card writes the driver believes a status and a length, each read once and checked; a packet's buffer
/// is the one that was posted.
pub struct Rx {
    pub(crate) ring: Ring,
    pub(crate) cache: Cache,
    /// Bytes behind the Ethernet header that are believed at most: of a frame, and what a buffer has room for.
    pub(crate) longest: usize,
    /// Of a queue that tells more of frames than their bytes, or joins buffers to frames.
    pub(crate) gather: Option<Box<Gather>>,
    pub(crate) interrupt: Option<Interrupt>,
    /// Of a queue that receives into a guest's buffers.
    pub(crate) mapped: Option<Box<Mapped>>,
}

impl Rx {
    /// Enables a queue whose buffers have so many KiB, then fills its ring and moves the tail (4.6.7.1).
    pub fn start(ring: Ring, kib: u32, setup: Setup, interrupt: Option<Interrupt>) -> Result<Self, Error> {
        ring.start()?;
        let longest = (kib as usize * 1024).min(setup.1.mtu.max(1500) + OVERHEAD) - ETHERNET_HEADER;
        let (cache, gather) = (setup.2.cache(), Gather::new(setup, kib as usize * 1024));
        let mut rx = Self { ring, cache, longest, gather, interrupt, mapped: None };
        rx.refill();
        Ok(rx)
    }

    /// Takes received packets, up to the ring's end or past the first faulty one. Returns whether more may follow.
    fn take_run(&mut self, burst: &mut Burst) -> bool {
        let (mut taken, mut faulty) = (0, false);
        let (head, posted, error) = (self.ring.head, self.ring.posted(), self.ring.device.rx_errors.mac);
        for ((descriptor, buffer), place) in self.ring.run(head, posted).zip(burst.spare()) {
            let status = descriptor[1].load(Ordering::Acquire);
            let len = (status >> RX_LENGTH_SHIFT) as u16 as usize;
            let good = status & (RX_DD | RX_EOP | error) == RX_DD | RX_EOP;
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
            self.ring.device.rx_faulty.fetch_add(1, Ordering::Relaxed);
        }
        faulty || taken > 0 && self.ring.index(self.ring.head) == 0
    }

    /// Posts free buffers in place of those taken, by [`REFILL`] or more. When the pool has run dry the ring runs
    /// shorter until buffers come back; meanwhile the card drops and counts.
    #[inline(always)]
    pub(crate) fn refill(&mut self) {
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
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.room();
        match self.gather {
            None => while self.take_run(burst) {},
            Some(_) => self.take_offloaded(burst),
        }
        self.refill_from_owner(burst, before - burst.room());
        // A mapped queue may have dropped them again, because its guest has gone.
        before - burst.room()
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        self.map(lending)
    }
}
