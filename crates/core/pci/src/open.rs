//! Opens a PCI device by its address.

use std::sync::Arc;

use ringpass_memory::Addressing;
use ringpass_port::Error;

use crate::{PciDevice, SysfsPci, Vfio, is_bound};

/// Opens the device at a PCI address: through VFIO if it is bound to `vfio-pci`, else through sysfs.
pub fn open_pci(address: &str) -> Result<Arc<dyn PciDevice>, Error> {
    Ok(if is_bound(address) { Vfio::open(address)? } else { SysfsPci::open(address)? })
}

/// Returns the kind of addresses that the device at a PCI address will use, before it is opened.
pub fn addressing_of(address: &str) -> Addressing {
    if is_bound(address) { Addressing::Virtual } else { Addressing::Physical }
}
