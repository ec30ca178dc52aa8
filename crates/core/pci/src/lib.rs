//! Access to a PCI device for its driver, independent of the way the device is reached: sysfs, VFIO or
//! vfio-user.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bar;
mod command;
mod foreign;
mod io_ports;
mod open;
mod region_io;
pub mod registers;
mod sysfs;
mod vfio;
mod vfio_user;

use std::sync::Arc;

use crate::registers::{IoRegion, Window};
use ringpass_memory::{Addressing, DmaRegion, ForeignMemory};
use ringpass_port::Error;

pub use foreign::ForeignMaps;
pub use open::{addressing_of, open_pci};
pub use ringpass_ipc::EventWaiter;
pub use sysfs::{SysfsPci, list_devices};
pub use vfio::{Vfio, group_of, is_bound};
pub use vfio_user::VfioUser;

/// Vendor and device id of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
}

/// A PCI device, owned by one driver until it is dropped. A port and its queues share it.
pub trait PciDevice: Send + Sync {
    /// Returns the vendor and device id.
    fn id(&self) -> DeviceId;

    /// Describes in one line, for people, how the device is reached and what that implies.
    fn description(&self) -> String;

    /// Returns BAR 0 as 32-bit registers, mapped; an error if it cannot be mapped.
    fn window(&self) -> Result<Window, Error>;

    /// Returns a BAR as registers of 8, 16 and 32 bits, in mapped memory or at I/O ports. Call it while the
    /// process may still open files. Only the calling thread and threads that are started later may use the
    /// region, and only while this device lives.
    fn region(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        Err(Error::Unsupported(format!("BAR {bar} of this device cannot be reached over its bus")))
    }

    /// Returns the first `len` bytes of a memory BAR, whole pages, to which others may write at any time. An
    /// error if they cannot be mapped.
    fn memory(&self, bar: usize, len: usize) -> Result<Arc<ForeignMemory>, Error> {
        let _ = len;
        Err(Error::Unsupported(format!("BAR {bar} of this device cannot be mapped as memory over its bus")))
    }

    /// Reads the device's configuration space from `offset` on; an error beyond its end.
    fn read_config(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let _ = out;
        Err(Error::Unsupported(format!("the configuration space at {offset:#x} cannot be read over this device's bus")))
    }

    /// Returns the kind of addresses that the device uses for DMA.
    fn addressing(&self) -> Addressing;

    /// Returns whether an IOMMU translates these addresses, unless the device bypasses it.
    fn behind_iommu(&self) -> bool {
        false
    }

    /// Returns the NUMA node that the device is attached to, if known.
    fn numa_node(&self) -> Option<u32>;

    /// Lets the device access a region, until `self` is dropped.
    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error>;

    /// Lets the device access memory of another process, at its addresses in this process, until
    /// [`unmap_foreign`](Self::unmap_foreign).
    fn map_foreign(&self, memory: &Arc<ForeignMemory>) -> Result<(), Error> {
        let _ = memory;
        Err(Error::Unsupported(
            "the card cannot be given a guest's memory: only VFIO, vfio-user and models do that".into(),
        ))
    }

    /// Takes memory of another process from the device. The device must have been told to stop using it before.
    fn unmap_foreign(&self, memory: &Arc<ForeignMemory>) {
        let _ = memory;
    }

    /// Allows or forbids the device to start DMA.
    fn set_bus_master(&self, on: bool) -> Result<(), Error>;

    /// Enables interrupt vectors 0 to `vectors - 1` and returns a waiter for each vector's eventfd. Empty if
    /// interrupts are not available this way. Call it at most once.
    fn interrupts(&self, vectors: usize) -> Result<Vec<EventWaiter>, Error> {
        let _ = vectors;
        Ok(Vec::new())
    }
}
