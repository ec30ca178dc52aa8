//! Memory for the descriptor rings of all queues.

use std::sync::atomic::AtomicU32;

use ringpass_memory::{Addressing, DmaArray, DmaRegion, Mempool, RegionConfig};
use ringpass_pci::PciDevice;
use ringpass_port::{Error, PortConfig};

use crate::ring::{Descriptor, Descriptors};

/// Memory of a queue pair, in one region.
pub(crate) struct QueueMemory {
    /// Rx ring.
    pub(crate) rx: Descriptors,
    /// Tx ring.
    pub(crate) tx: Descriptors,
    /// Word to which the card writes the Tx head, if head write-back is on.
    pub(crate) head: Option<DmaArray<AtomicU32>>,
}

/// Allocates the rings of all queues, maps them and the pool for the card, and enables bus mastering.
pub(crate) fn ring_memory(bus: &dyn PciDevice, config: &PortConfig, pool: &Mempool) -> Result<Vec<QueueMemory>, Error> {
    let PortConfig { queues, rx_ring, tx_ring, head_write_back, .. } = *config;
    let memory = RegionConfig { numa_node: bus.numa_node(), ..*pool.region().config() };
    if bus.addressing() == Addressing::Physical && memory.addressing != Addressing::Physical {
        return Err(ringpass_memory::Error::PhysicalOnOrdinaryPages.into());
    }
    // Each ring starts at a multiple of the larger ring's size, at most 64 KiB, so none crosses a huge page.
    // The heads follow, each on a cache line of its own.
    let ring = rx_ring.max(tx_ring) * size_of::<Descriptor>();
    let heads = 2 * queues * ring;
    let region = DmaRegion::new(heads + 64 * queues, &memory)?;
    bus.map(pool.region())?;
    bus.map(&region)?;
    bus.set_bus_master(true)?;
    let of_queue = |q| {
        let rx = DmaArray::new(&region, 2 * q * ring, rx_ring)?;
        let tx = DmaArray::new(&region, (2 * q + 1) * ring, tx_ring)?;
        let head = head_write_back.then(|| DmaArray::new(&region, heads + 64 * q, 1)).transpose()?;
        Ok(QueueMemory { rx, tx, head })
    };
    (0..queues).map(of_queue).collect()
}
