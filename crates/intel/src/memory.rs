//! Memory for the rings of all queues.

use std::sync::atomic::AtomicU32;

use ringpass_bus::Bus;
use ringpass_memory::{Addressing, DmaArray, DmaRegion, Mempool, RegionConfig};
use ringpass_port::{Error, PortConfig};

use crate::ring::{Descriptor, Descriptors};

/// Of a pair of queues: the Rx ring, the Tx ring, and where the card is to write the latter's head, if it is; in one region.
pub type Memory = (Descriptors, Descriptors, Option<DmaArray<AtomicU32>>);

/// Rings for all queues, and lets the card use them and the pool.
pub fn ring_memory(bus: &dyn Bus, config: &PortConfig, pool: &Mempool) -> Result<Vec<Memory>, Error> {
    let PortConfig { queues, rx_ring, tx_ring, head_write_back, .. } = *config;
    let memory = RegionConfig { numa_node: bus.numa_node(), ..*pool.region().config() };
    if bus.addressing() == Addressing::Physical && memory.addressing != Addressing::Physical {
        return Err(ringpass_memory::Error::PhysicalOnOrdinaryPages.into());
    }
    // Rings lie at multiples of the larger one's size, up to 64 KiB, so that none straddles a huge page. Behind them a
    // cache line for each head.
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
        Ok((rx, tx, head))
    };
    (0..queues).map(of_queue).collect()
}
