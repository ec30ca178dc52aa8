//! How a driver reaches a device, without knowing which device it is.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bar;
mod calls;
mod command;
mod foreign;
mod open;
mod ports;
mod sysfs;
mod vfio;
mod vfio_user;

use std::sync::Arc;

use ringpass_memory::{Addressing, DmaRegion, ForeignMemory};
use ringpass_port::Error;
use ringpass_registers::{IoRegion, Window};

pub use foreign::{ForeignMaps, GrantOnBus};
pub use open::{addressing_of, open_pci};
pub use ringpass_peer::Waiter;
pub use sysfs::{SysfsPci, present};
pub use vfio::{Vfio, group_of, is_bound};
pub use vfio_user::VfioUser;

/// Vendor and device of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
}

/// A device on its bus, taken by a driver until it is dropped. Shared by a port and its queues.
pub trait Bus: Send + Sync {
    /// Vendor and device.
    fn id(&self) -> DeviceId;

    /// What kind of bus this is and what that means, in one line, for people.
    fn description(&self) -> String;

    /// BAR 0 as registers of 32 bits, mapped; an error if it cannot be.
    fn window(&self) -> Result<Window, Error>;

    /// A BAR as registers of 8, 16 and 32 bits: mapped memory or I/O ports. Opened while the process may open files,
    /// and reached only by the thread that opens it and by those that are started after that. Good while the bus lives.
    fn region(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        Err(Error::Other(format!("BAR {bar} of this device cannot be reached over its bus")))
    }

    /// The first `len` bytes of a BAR that is memory, which others may write at any time; whole pages. An error if it cannot be
    /// mapped.
    fn memory(&self, bar: usize, len: usize) -> Result<Arc<ForeignMemory>, Error> {
        let _ = len;
        Err(Error::Other(format!("BAR {bar} of this device cannot be mapped as memory over its bus")))
    }

    /// Reads the device's configuration space from `offset` on; an error beyond its end.
    fn read_config(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let _ = out;
        Err(Error::Other(format!("the configuration space at {offset:#x} cannot be read over this device's bus")))
    }

    /// What addresses the device uses.
    fn addressing(&self) -> Addressing;

    /// Whether an IOMMU translates these addresses, for those devices that do not bypass it.
    fn behind_iommu(&self) -> bool {
        false
    }

    /// The NUMA node that the device is attached to.
    fn numa_node(&self) -> Option<u32>;

    /// Lets the device use a region, until the bus is dropped.
    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error>;

    /// Lets the device use memory of another process, at the addresses of this one, until that is taken back.
    fn map_foreign(&self, memory: &Arc<ForeignMemory>) -> Result<(), Error> {
        let _ = memory;
        Err(Error::Other("the card cannot be given a guest's memory: only VFIO, vfio-user and models do that".into()))
    }

    /// Takes memory of another process back. The device was told to stop using it before.
    fn unmap_foreign(&self, memory: &Arc<ForeignMemory>) {
        let _ = memory;
    }

    /// Lets the device start DMA, or no longer.
    fn set_bus_master(&self, on: bool) -> Result<(), Error>;

    /// Enables interrupt vectors 0 to `vectors - 1` and returns for each what its eventfd is waited for by. Empty if the bus has
    /// none. Asked for at most once.
    fn interrupts(&self, vectors: usize) -> Result<Vec<Waiter>, Error> {
        let _ = vectors;
        Ok(Vec::new())
    }
}
