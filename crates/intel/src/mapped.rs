//! A queue that receives into the buffers that a guest lends: Rx queue mapping (Kawashima, *Software Physical/Virtual Rx
//! Queue Mapping*, IEEE TNSM 2021). The ring does not know whose buffers it holds; it is refilled from elsewhere.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringpass_bus::GrantOnBus;
use ringpass_memory::{Addressing, Borrower, Buffer, Burst, Flags, Lending};
use ringpass_port::Error;

use crate::ring::Ring;
use crate::rx::{ETHERNET_HEADER, REFILL, Rx};

/// How long nothing may be lent to a ring that has next to nothing, before it is given buffers of the host: frames in those
/// are copied, but a guest that lends nothing must not keep frames for others from arriving. One that is merely slow lends
/// again within that time.
const PATIENCE: Duration = Duration::from_millis(10);

/// Where a mapped queue's buffers come from.
pub(crate) struct Mapped {
    borrower: Borrower,
    /// Since when the ring has next to nothing, with nothing lent.
    starved: Option<Instant>,
    /// Buffers of the host's that the ring has.
    own: usize,
    /// The card did not stop.
    stuck: bool,
}

impl Mapped {
    /// The ring was given buffers of the host's.
    fn took_own(&mut self, buffers: usize) {
        self.own += buffers;
        self.borrower.took_own(buffers);
    }
}

impl Rx {
    /// Receives into lent buffers from now on.
    pub(crate) fn map(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        let device = &self.ring.device;
        if device.bus.addressing() == Addressing::Physical {
            return Err(Error::Other(
                "a queue of a card without an IOMMU cannot be mapped to a guest's: the card could write anywhere; bind it to \
                 vfio-pci"
                    .into(),
            ));
        }
        let least = self.longest + ETHERNET_HEADER;
        let grant = Box::new(GrantOnBus(device.bus.clone()));
        let borrower = Borrower::new(lending, grant, least).map_err(Error::Other)?;
        self.mapped = Some(Box::new(Mapped { borrower, starved: None, own: self.ring.posted(), stuck: false }));
        Ok(())
    }

    /// Refills the ring with whosoever's buffers it is to have, after so many packets were received.
    #[inline(always)]
    pub(crate) fn refill_from_owner(&mut self, burst: &mut Burst, received: usize) {
        match self.mapped {
            None => self.refill(),
            Some(_) => self.refill_mapped(burst, received),
        }
    }

    /// Marks received packets whose buffers are lent, then posts what is lent in place of those that were taken.
    #[inline(never)]
    fn refill_mapped(&mut self, burst: &mut Burst, received: usize) {
        let Some(mapped) = &mut self.mapped else { return };
        let before = burst.len() - received;
        for packet in &mut burst[before..] {
            if mapped.own == 0 || mapped.borrower.has_lent(packet) {
                packet.add_flags(Flags::LENT);
            } else {
                mapped.own -= 1;
            }
        }
        if mapped.borrower.changed() && !mapped.stuck {
            // What has just come is of the ring that stops: it would overtake what the guest lends, as a copy.
            (0..received).for_each(|_| drop(burst.pop()));
            self.exchange();
        }
        let Some(mapped) = self.mapped.as_mut().filter(|mapped| !mapped.stuck) else { return };
        let tail = self.ring.tail;
        let ring = &mut self.ring;
        // As many turns as an owner needs who lends whole runs: one who lends buffer by buffer goes on at the next burst.
        for _ in 0..=ring.buffers.len() / REFILL {
            if ring.room() < REFILL || post(ring, |room| mapped.borrower.borrow(room)) == 0 {
                break;
            }
        }
        if ring.posted() >= REFILL || ring.tail != tail {
            mapped.starved = None;
        } else if !mapped.borrower.may_borrow() || mapped.starved.get_or_insert_with(Instant::now).elapsed() >= PATIENCE
        {
            mapped.starved = None;
            mapped.took_own(post(ring, |_| self.cache.buffers(REFILL)));
        }
        ring.publish(tail);
    }

    /// Before a sleep, which only the card ends: a ring that has nothing posted would never be woken.
    pub(crate) fn arm_mapped(&mut self) {
        if let Some(mapped) = self.mapped.as_mut().filter(|_| self.ring.posted() == 0) {
            let tail = self.ring.tail;
            mapped.took_own(post(&mut self.ring, |_| self.cache.buffers(REFILL)));
            self.ring.publish(tail);
        }
    }

    /// A guest has come or gone: the card lets go of all buffers, and begins again with what is lent now. What it has
    /// received meanwhile is lost, as for a card that is stopped. A card that does not stop keeps its buffers, and the
    /// lender hears nothing of them.
    #[cold]
    fn exchange(&mut self) {
        if self.restart().is_err() {
            // Asking again each time would cost a second.
            self.mapped.iter_mut().for_each(|mapped| mapped.stuck = true);
            self.ring.device.hang.rx_stuck();
        }
    }

    fn restart(&mut self) -> Result<(), Error> {
        self.ring.stop()?;
        if let Some(mapped) = &mut self.mapped {
            mapped.borrower.renew();
            mapped.own = 0;
        }
        // 4.6.7.1.2: descriptors are read from the start of the ring again.
        (self.ring.head, self.ring.tail) = (0, 0);
        self.ring.device.window.write(self.ring.registers[0], 0);
        self.ring.doorbell.ring(0);
        self.ring.start()
    }
}

/// Posts buffers, of which there are no more than asked for, up to the ring's end. Returns how many.
#[inline]
fn post<I: Iterator<Item = Buffer>>(ring: &mut Ring, buffers: impl FnOnce(usize) -> I) -> usize {
    let (tail, mut posted) = (ring.tail, 0);
    let room = ring.room().min(ring.buffers.len() - ring.index(tail));
    for ((descriptor, place), buffer) in ring.run(tail, room).zip(buffers(room)) {
        descriptor[0].store(buffer.iova(), Ordering::Relaxed);
        descriptor[1].store(0, Ordering::Relaxed);
        place.write(buffer);
        posted += 1;
    }
    ring.tail += posted;
    posted
}
