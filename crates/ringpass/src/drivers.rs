//! Which driver drives which card.

use std::sync::Arc;

use ringpass_bus::{Bus, DeviceId};
use ringpass_igb::Igb;
use ringpass_ixgbe::Ixgbe;
use ringpass_memory::Mempool;
use ringpass_port::{Error, Port, PortConfig};
use ringpass_ptnet_driver::Ptnet;
use ringpass_virtio_net::VirtioNet;

/// The families that there are drivers for, for people.
pub const FAMILIES: &str = "82576, 82599, X540, X550 and virtio network cards, and netmap ports passed through";

/// What a card is called, if there is a driver for it.
pub fn supports(id: DeviceId) -> Option<&'static str> {
    ringpass_ixgbe::supports(id)
        .or_else(|| ringpass_igb::supports(id))
        .or_else(|| ringpass_virtio_net::supports(id))
        .or_else(|| ringpass_ptnet_driver::supports(id))
}

/// Whether its driver takes packets whose buffers have no headroom.
pub fn takes_bare_buffers(id: DeviceId) -> bool {
    ringpass_ixgbe::supports(id).or_else(|| ringpass_igb::supports(id)).is_some()
}

/// Finds the device with the memory of this number, of which a netmap port passed through has one.
pub type FindMemory<'a> = &'a dyn Fn(u16) -> Result<Arc<dyn Bus>, Error>;

/// Opens the card on a bus with its driver; one that has no other device beside it.
pub fn open(bus: Arc<dyn Bus>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Box<dyn Port>, Error> {
    let none = |number| Err(Error::Other(format!("{name}: there is no device with memory {number}")));
    open_with_memory(bus, &none, name, config, pool)
}

/// Opens the card on a bus with its driver.
pub fn open_with_memory(
    bus: Arc<dyn Bus>,
    memory: FindMemory<'_>,
    name: &str,
    config: &PortConfig,
    pool: &Mempool,
) -> Result<Box<dyn Port>, Error> {
    let id = bus.id();
    if ringpass_ixgbe::supports(id).is_some() {
        Ok(Box::new(Ixgbe::open(bus, name, config, pool)?))
    } else if ringpass_igb::supports(id).is_some() {
        Ok(Box::new(Igb::open(bus, name, config, pool)?))
    } else if ringpass_virtio_net::supports(id).is_some() {
        Ok(Box::new(VirtioNet::open(bus, name, config, pool)?))
    } else if ringpass_ptnet_driver::supports(id).is_some() {
        Ok(Box::new(Ptnet::open(bus, memory, name, config, pool)?))
    } else {
        let DeviceId { vendor, device } = id;
        Err(Error::Other(format!("{name}: no driver for a {vendor:04x}:{device:04x}; Ringpass drives {FAMILIES}")))
    }
}
