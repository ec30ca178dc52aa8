//! Receiving into buffers that a guest lends: Rx queue mapping (Kawashima, *Software Physical/Virtual Rx Queue
//! Mapping*, IEEE TNSM 2021).
//!
//! The ring does not distinguish whose buffers it holds; only the source of its refills differs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringpass_memory::{Addressing, Buffer, Burst, Cache, Flags, ForeignMemory};
use ringpass_pci::PciDevice;
use ringpass_port::Error;
use ringpass_port::lending::{Borrower, Grant, Lending};

use crate::ring::{REFILL, Ring};

/// How long a ring may be nearly empty with nothing lent before it gets buffers of the host.
///
/// Frames in host buffers must be copied to the guest. But a guest that lends nothing must not keep frames for
/// other destinations from arriving. A guest that is only slow lends again within this time.
const STARVATION_TIMEOUT: Duration = Duration::from_millis(10);

/// Source of a mapped queue's buffers.
pub(crate) struct MappedRx {
    borrower: Borrower,
    /// Time at which the ring became nearly empty with nothing lent.
    starved: Option<Instant>,
    /// Host buffers that are posted in the ring.
    own: usize,
    /// The card did not stop the queue, so the ring is no longer refilled.
    stuck: bool,
}

/// Grants foreign memory to a card through its [`PciDevice`].
struct BusGrant(Arc<dyn PciDevice>);

impl Grant for BusGrant {
    fn grant(&self, memory: &Arc<ForeignMemory>) -> Result<(), String> {
        self.0.map_foreign(memory).map_err(|error| error.to_string())
    }

    fn revoke(&self, memory: &Arc<ForeignMemory>) {
        self.0.unmap_foreign(memory);
    }
}

impl MappedRx {
    /// Prepares a queue to receive into lent buffers, of at least `least` bytes each, from now on.
    pub(crate) fn new(ring: &Ring, lending: &Arc<Lending>, least: usize) -> Result<Self, Error> {
        let bus = &ring.device.bus;
        if bus.addressing() == Addressing::Physical {
            return Err(Error::Unsupported(
                "a queue of a card without an IOMMU cannot be mapped to a guest's: the card could write anywhere; bind it to \
                 vfio-pci"
                    .into(),
            ));
        }
        let borrower = Borrower::new(lending, Box::new(BusGrant(bus.clone())), least).map_err(Error::Unsupported)?;
        Ok(Self { borrower, starved: None, own: ring.posted(), stuck: false })
    }

    /// Marks received packets whose buffers are lent, then posts lent buffers in place of those taken.
    /// `received` is the number of packets at the end of the burst that have just been received.
    #[inline(never)]
    pub(crate) fn refill(&mut self, ring: &mut Ring, cache: &mut Cache, burst: &mut Burst, received: usize) {
        let before = burst.len() - received;
        for packet in &mut burst[before..] {
            if self.own == 0 || self.borrower.is_lent(packet) {
                packet.add_flags(Flags::LENT);
            } else {
                self.own -= 1;
            }
        }
        if self.borrower.changed() && !self.stuck {
            // The packets just received belong to the ring that is about to stop. They are dropped: delivered
            // as copies, they would overtake frames in lent buffers.
            (0..received).for_each(|_| drop(burst.pop()));
            self.switch_lease(ring);
        }
        if self.stuck {
            return;
        }
        let tail = ring.tail;
        // Enough rounds for a lender whose buffers come in whole runs. One that lends single buffers continues
        // at the next burst.
        for _ in 0..=ring.buffers.len() / REFILL {
            if ring.room() < REFILL || post(ring, |room| self.borrower.borrow(room)) == 0 {
                break;
            }
        }
        if ring.posted() >= REFILL || ring.tail != tail {
            self.starved = None;
        } else if !self.borrower.has_lease()
            || self.starved.get_or_insert_with(Instant::now).elapsed() >= STARVATION_TIMEOUT
        {
            self.starved = None;
            self.post_host_buffers(ring, cache);
        }
        ring.publish(tail);
    }

    /// Posts some host buffers to an empty ring before the queue sleeps: only a received frame wakes it, and a
    /// ring without descriptors receives none.
    pub(crate) fn arm(&mut self, ring: &mut Ring, cache: &mut Cache) {
        if ring.posted() == 0 {
            let tail = ring.tail;
            self.post_host_buffers(ring, cache);
            ring.publish(tail);
        }
    }

    /// Posts some host buffers and counts them.
    fn post_host_buffers(&mut self, ring: &mut Ring, cache: &mut Cache) {
        let posted = post(ring, |_| cache.buffers(REFILL));
        self.own += posted;
        self.borrower.count_host_buffers(posted);
    }

    /// Switches to another lease after a guest has come or gone: the queue is stopped, all buffers are taken
    /// from the card, and it restarts with what is lent now. Frames received meanwhile are lost, as whenever a
    /// queue is stopped. If the card does not stop, it keeps its buffers, and the lender does not get them
    /// back.
    #[cold]
    fn switch_lease(&mut self, ring: &mut Ring) {
        if self.restart(ring).is_err() {
            // Each further attempt would wait another second.
            self.stuck = true;
            ring.device.hang.rx_stuck();
        }
    }

    fn restart(&mut self, ring: &mut Ring) -> Result<(), Error> {
        ring.stop()?;
        self.borrower.renew();
        self.own = 0;
        // 4.6.7.1.2: the card reads descriptors from the start of the ring again.
        ring.rewind();
        ring.start()
    }
}

/// Posts buffers up to the end of the ring. `buffers` gets the free room and must return no more than that.
/// Returns how many were posted.
#[inline]
fn post<I: Iterator<Item = Buffer>>(ring: &mut Ring, buffers: impl FnOnce(usize) -> I) -> usize {
    let (tail, mut posted) = (ring.tail, 0);
    let room = ring.room().min(ring.buffers.len() - ring.index(tail));
    let (descriptors, places) = ring.run(tail, room);
    for ((descriptor, place), buffer) in descriptors.iter().zip(places).zip(buffers(room)) {
        descriptor[0].store(buffer.iova(), Ordering::Relaxed);
        descriptor[1].store(0, Ordering::Relaxed);
        place.write(buffer);
        posted += 1;
    }
    ring.tail += posted;
    posted
}
