//! A virtio network card, seen from the driver's side (configuration space, registers, virtqueues) and from the wire's.
//! Sections are those of *Virtual I/O Device (VIRTIO) Version 1.3*.
//!
//! It judges its driver: rings and buffers that are not as drivers must make them end in [`VirtioCard::fault`], and a
//! queue is looked at only when the driver has notified the card as the specification demands, so that a notification
//! that is missing shows as frames that do not come.
//!
//! What is not modelled: RSS and hash reports, UDP segmentation, announcements, guest offloads at run time.

mod bars;
mod config;
mod control;
mod counters;
mod device;
mod filter;
mod header;
mod interrupts;
mod kicks;
mod liar;
mod lies;
mod outlet;
mod pci;
mod queue;
mod registers;
mod ring;
mod rx;
mod served;
mod steer;
mod tx;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_bus::{Bus, DeviceId};
use ringpass_memory::{Addressing, DmaRegion, ForeignMemory, Mempool, MempoolConfig};
use ringpass_peer::{Signal, Waiter};
use ringpass_port::{Error, Queues};
use ringpass_registers::{IoRegion, Window};
use ringpass_vfio_user::ConfigSpace;

pub use crate::dma::Access;
pub use crate::lies::When;
use crate::runner::{Model, Wants};
use bars::View;
pub use config::{Interface, VirtioConfig};
pub use counters::Counters;
use device::Device;
use kicks::Kicks;
pub use lies::{Lie, Lies};
pub use served::Served;

/// A card in the process: the bus that a driver opens, with a wire on the other side.
pub struct VirtioCard {
    config: VirtioConfig,
    shared: Arc<Shared>,
}

/// What the card shares with its BARs.
struct Shared {
    device: Mutex<Device>,
    space: Mutex<ConfigSpace>,
    kicks: Kicks,
    /// Register accesses under way. The stepping thread, which has the lock nearly all the time, lets them in first.
    waiting: AtomicU32,
}

impl VirtioCard {
    /// A card as after power-on.
    ///
    /// # Panics
    /// If the configuration has no queues, or more of them or of their descriptors than there can be.
    pub fn new(config: &VirtioConfig) -> Arc<Self> {
        let pairs = (1..=256).contains(&config.queue_pairs);
        assert!(pairs && (1..=ringpass_virtio::layout::MAX_SIZE).contains(&config.queue_size), "{config:?}");
        let pool = Mempool::new(&MempoolConfig { buffers: 2048, size: 2048, ..Default::default() });
        let pool = pool.expect("some MiB of ordinary pages for the model's frames");
        let shared = Shared {
            device: Mutex::new(Device::new(config, &pool)),
            space: Mutex::new(pci::config_space(config)),
            kicks: Kicks::new(config.queues()),
            waiting: AtomicU32::new(0),
        };
        Arc::new(Self { config: *config, shared: Arc::new(shared) })
    }

    /// MSI-X vectors.
    pub fn vectors(&self) -> usize {
        self.config.vectors()
    }

    /// Gives the card a part of another process's memory.
    pub fn map_foreign(
        &self,
        iova: u64,
        memory: &Arc<ForeignMemory>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<(), Error> {
        self.shared.change(|device| device.dma.add_foreign(iova, memory, offset, len, access))
    }

    /// Takes memory away: any span, with many maps, a part of one, or none. The card does not touch it afterwards.
    pub fn unmap(&self, iova: u64, len: u64) {
        self.shared.access(|device| device.dma.remove(iova, len));
    }

    /// Takes all memory away.
    pub fn unmap_all(&self) {
        self.shared.access(|device| device.dma.clear());
    }

    /// Where an MSI-X vector is heard; MSI-X is on while any is. The event is written to without waiting.
    ///
    /// # Panics
    /// If the card has no such vector.
    pub fn set_vector(&self, vector: usize, event: Option<Signal>) {
        self.shared.access(|device| device.interrupts.set_vector(vector, event));
    }

    /// A reset of the function: all as after power-on, but memory, vectors, link and wire stay.
    pub fn reset(&self) {
        self.shared.change(|device| device.reset(&self.shared.kicks));
    }

    /// One round: what the driver's notifications ask for, up to a burst from the wire, up to a burst from each queue to
    /// it. Returns how many packets moved. The same state, notifications and wire give the same round.
    pub fn step(&self, wire: &mut Queues) -> usize {
        self.shared.let_registers_in();
        self.shared.lock().step(wire, &self.shared.kicks)
    }

    /// The model's own totals, which no driver can clear.
    pub fn counters(&self) -> Counters {
        let (notifications, wrong) = self.shared.kicks.counts();
        let counters = self.shared.access(|device| device.counters);
        Counters { notifications, wrong_notifications: counters.wrong_notifications + wrong, ..counters }
    }

    /// What the driver did that drivers may not do, if the card is broken for it; until the next reset.
    pub fn fault(&self) -> Option<&'static str> {
        self.shared.access(|device| device.fault)
    }

    /// The features that the driver has accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.access(|device| device.accepted)
    }

    /// Plugs the cable in or out. While it is out, frames from the wire are lost and none is sent.
    pub fn set_link(&self, up: bool) {
        self.shared.change(|device| device.set_link(up));
    }
}

impl Model for VirtioCard {
    fn step(&self, wire: &mut Queues) -> usize {
        self.step(wire)
    }

    fn doze(&self) {
        self.shared.kicks.doze();
    }

    fn rise(&self) {
        self.shared.kicks.rise();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.shared.kicks.wake()
    }

    fn wants(&self) -> Wants {
        self.shared.access(|device| device.wants())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Device> {
        // A test that panicked with the lock held has reported that; the registers are valid at any time.
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn space(&self) -> MutexGuard<'_, ConfigSpace> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` between two steps.
    fn access<R>(&self, f: impl FnOnce(&mut Device) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = f(&mut self.lock());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// As `access`, where that may give the card something to do.
    fn change<R>(&self, f: impl FnOnce(&mut Device) -> R) -> R {
        let result = self.access(f);
        self.kicks.ring();
        result
    }

    /// A mutex that is unlocked and locked again at once starves those who sleep on it.
    fn let_registers_in(&self) {
        for _ in 0..100 {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Bus for VirtioCard {
    fn id(&self) -> DeviceId {
        pci::id(self.config.interface)
    }

    fn description(&self) -> String {
        "a model in this process".into()
    }

    fn window(&self) -> Result<Window, Error> {
        Err(Error::Other("a virtio card has no registers of 32 bits alone".into()))
    }

    fn region(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        if !self.shared.access(|device| device.has_bar(bar)) {
            return Err(Error::Other(format!("the model has no registers in BAR {bar}")));
        }
        let len = if bar == pci::LEGACY_BAR { registers::LEGACY_LEN } else { registers::MODERN_LEN };
        Ok(Arc::new(View { shared: self.shared.clone(), bar, len }))
    }

    fn read_config(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        if offset.checked_add(out.len()).is_none_or(|end| end as u64 > ConfigSpace::SIZE) {
            return Err(Error::Other(format!("a configuration space ends before {offset:#x} and {} bytes", out.len())));
        }
        match self.shared.access(|device| device.is_removed()) {
            true => out.fill(0xff),
            false => self.shared.space().read(offset as u64, out),
        }
        Ok(())
    }

    fn addressing(&self) -> Addressing {
        self.config.addressing
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.shared.change(|device| device.dma.add(region));
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.shared.change(|device| device.bus_master = on);
        Ok(())
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<Waiter>, Error> {
        let events =
            crate::vectors(vectors.min(self.vectors()), |vector, signal| self.set_vector(vector, Some(signal)));
        self.shared.space().write(pci::MSIX_CONTROL, &[0x80]);
        events
    }
}
