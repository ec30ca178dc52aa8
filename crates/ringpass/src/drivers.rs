//! Selection of the driver for a card.

use std::sync::Arc;

use ringpass_intel::igb::Igb;
use ringpass_intel::ixgbe::Ixgbe;
use ringpass_memory::Mempool;
use ringpass_pci::{DeviceId, PciDevice};
use ringpass_port::{Error, Port, PortConfig};
use ringpass_ptnet::driver::{self as ptnet, PtnetPort};
use ringpass_virtio_net::VirtioNet;

/// Supported device families, as printed in messages.
pub const FAMILIES: &str = "82576, 82599, X540, X550 and virtio network cards, and netmap ports passed through";

/// Returns the name of a card if a driver supports it.
pub fn supports(id: DeviceId) -> Option<&'static str> {
    Ixgbe::supports(id)
        .or_else(|| Igb::supports(id))
        .or_else(|| ringpass_virtio_net::supports(id))
        .or_else(|| ptnet::supports(id))
}

/// Returns whether the card's driver accepts packets whose buffers have no headroom.
pub fn works_without_headroom(id: DeviceId) -> bool {
    Ixgbe::supports(id).or_else(|| Igb::supports(id)).is_some()
}

/// Finds the device that holds the netmap memory with this number. A netmap port passed through uses one.
pub type FindMemory<'a> = &'a dyn Fn(u16) -> Result<Arc<dyn PciDevice>, Error>;

/// Opens the card on a bus with its driver, without access to any other device.
///
/// ```
/// use ringpass::models::ixgbe::{Card, CardConfig};
/// use ringpass::{Mempool, MempoolConfig, PortConfig, drivers};
///
/// let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() })?;
/// let card = Card::new(&CardConfig::default());
/// let mut port = drivers::open(card.clone(), "card", &PortConfig::default(), &pool)?;
/// assert!(port.link().up);
/// # Ok::<(), ringpass::Error>(())
/// ```
///
/// # Errors
/// If no driver supports the card, or the card does not come up.
pub fn open(bus: Arc<dyn PciDevice>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Box<dyn Port>, Error> {
    let none = |number| Err(Error::NotFound(format!("{name}: there is no device with memory {number}")));
    open_with_memory(bus, &none, name, config, pool)
}

/// Opens the card on a bus with its driver. `memory` finds the memory device of a netmap port passed through.
pub fn open_with_memory(
    bus: Arc<dyn PciDevice>,
    memory: FindMemory<'_>,
    name: &str,
    config: &PortConfig,
    pool: &Mempool,
) -> Result<Box<dyn Port>, Error> {
    let id = bus.id();
    if Ixgbe::supports(id).is_some() {
        Ok(Box::new(Ixgbe::open(bus, name, config, pool)?))
    } else if Igb::supports(id).is_some() {
        Ok(Box::new(Igb::open(bus, name, config, pool)?))
    } else if ringpass_virtio_net::supports(id).is_some() {
        Ok(Box::new(VirtioNet::open(bus, name, config, pool)?))
    } else if ptnet::supports(id).is_some() {
        Ok(Box::new(PtnetPort::open(bus, memory, name, config, pool)?))
    } else {
        let DeviceId { vendor, device } = id;
        Err(Error::NoDriver(format!("{name}: no driver for a {vendor:04x}:{device:04x}; Ringpass drives {FAMILIES}")))
    }
}
