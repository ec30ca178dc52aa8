//! The device in the process: what a driver in it, a server and the wire reach.

use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use ringpass_ipc::{EventNotifier, EventWaiter};
use ringpass_memory::{Access, Addressing, DmaMapError, DmaRegion, Memory, Mempool, MempoolConfig};
use ringpass_pci::registers::{IoRegion, Window};
use ringpass_pci::{DeviceId, PciDevice};
use ringpass_port::{Error, QueuePair};
use ringpass_vfio_user::ConfigSpace;

use super::bars::BarRegion;
use super::config::VirtioConfig;
use super::counters::Counters;
use super::device::Device;
use super::kicks::Kicks;
use super::shared::Shared;
use super::{layout, pci};
use crate::model::{Interest, Model};

/// A virtio network device in the process: a PCI device for the driver, and a wire on the other side.
pub struct VirtioCard {
    config: VirtioConfig,
    pub(super) shared: Arc<Shared>,
}

impl VirtioCard {
    /// Creates a device in its state after power-on.
    ///
    /// # Panics
    /// If the configuration has no queues, or more queues or descriptors than the specification allows.
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

    /// Returns the number of MSI-X vectors.
    pub fn vectors(&self) -> usize {
        self.config.vectors()
    }

    /// Maps memory for DMA, from `iova` on.
    pub fn map_at(&self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        self.shared.change(|device| device.dma.insert(iova, memory, access))
    }

    /// Unmaps a range of addresses, which may cover many maps, a part of one, or none. The device does not access
    /// it afterwards. Fails, with nothing unmapped, if a hole would make one more map than there may be.
    pub fn unmap(&self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        self.shared.access(|device| device.dma.remove(iova, len))
    }

    /// Unmaps all memory.
    pub fn unmap_all(&self) {
        self.shared.access(|device| device.dma.clear());
    }

    /// Sets or removes the event of an MSI-X vector. MSI-X is on while any vector has one. Signalling never
    /// blocks.
    ///
    /// # Panics
    /// If the device has no such vector.
    pub fn set_vector(&self, vector: usize, event: Option<EventNotifier>) {
        self.shared.access(|device| device.interrupts.set_vector(vector, event));
    }

    /// Resets the function to its state after power-on, except that memory, vectors, link and wire stay.
    pub fn reset(&self) {
        self.shared.change(|device| device.reset(&self.shared.kicks));
    }

    /// Runs one step: handles the driver's notifications, receives up to a burst from the wire and sends up to
    /// a burst from each queue. Returns how many packets moved. Steps are deterministic: the same state,
    /// notifications and wire give the same result.
    pub fn step(&self, wire: &mut QueuePair) -> usize {
        self.shared.yield_to_registers();
        self.shared.lock().step(wire, &self.shared.kicks)
    }

    /// Returns the model's own totals, which a driver cannot clear.
    pub fn counters(&self) -> Counters {
        let (notifications, wrong) = self.shared.kicks.counts();
        let counters = self.shared.access(|device| device.counters);
        Counters { notifications, wrong_notifications: counters.wrong_notifications + wrong, ..counters }
    }

    /// Returns how the driver violated the specification, if the device is broken for that, until the next
    /// reset.
    pub fn fault(&self) -> Option<&'static str> {
        self.shared.access(|device| device.fault)
    }

    /// Returns the features that the driver has accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.access(|device| device.accepted)
    }

    /// Sets the link up or down. While it is down, frames from the wire are lost and none is sent.
    pub fn set_link(&self, up: bool) {
        self.shared.change(|device| device.set_link(up));
    }
}

impl Model for VirtioCard {
    fn step(&self, wire: &mut QueuePair) -> usize {
        self.step(wire)
    }

    fn prepare_to_wait(&self) {
        self.shared.kicks.prepare_to_wait();
    }

    fn finish_wait(&self) {
        self.shared.kicks.finish_wait();
    }

    fn waker(&self) -> BorrowedFd<'_> {
        self.shared.kicks.wake()
    }

    fn interest(&self) -> Interest {
        self.shared.access(|device| device.interest())
    }
}

impl PciDevice for VirtioCard {
    fn id(&self) -> DeviceId {
        pci::id(self.config.interface)
    }

    fn description(&self) -> String {
        "a model in this process".into()
    }

    fn window(&self) -> Result<Window, Error> {
        Err(Error::Unsupported("a virtio card has no registers of 32 bits alone".into()))
    }

    fn region(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        if !self.shared.access(|device| device.has_bar(bar)) {
            return Err(Error::Unsupported(format!("the model has no registers in BAR {bar}")));
        }
        let len = if bar == layout::LEGACY_BAR { layout::LEGACY_LEN } else { layout::MODERN_LEN };
        Ok(Arc::new(BarRegion { shared: self.shared.clone(), bar, len }))
    }

    fn read_config(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        if offset.checked_add(out.len()).is_none_or(|end| end as u64 > ConfigSpace::SIZE) {
            return Err(Error::Unsupported(format!(
                "a configuration space ends before {offset:#x} and {} bytes",
                out.len()
            )));
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
        self.shared.change(|device| device.dma.add(region)).map_err(|error| Error::Fault(error.to_string()))
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.shared.change(|device| device.bus_master = on);
        Ok(())
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<EventWaiter>, Error> {
        let events =
            crate::vector::vectors(vectors.min(self.vectors()), |vector, signal| self.set_vector(vector, Some(signal)));
        self.shared.space().write(pci::MSIX_CONTROL, &[0x80]);
        events
    }
}
