//! PCI configuration space (4.1.2, 4.1.4).

use ringpass_pci::DeviceId;
use ringpass_vfio_user::{ConfigSpace, Identity};

use super::config::{Interface, VirtioConfig};
use super::layout::*;

pub(super) const VENDOR: u16 = 0x1af4;
/// Offset of the MSI-X capability, and of the byte of its control register that enables it.
const MSIX: usize = 0x50;
pub(super) const MSIX_CONTROL: u64 = MSIX as u64 + 3;
/// Offset of the capability that gives access to the BARs through configuration space (4.1.4.9).
pub(super) const WINDOW: usize = 0xb0;

/// Types of structures (4.1.4).
const COMMON_CFG: u8 = 1;
const NOTIFY_CFG: u8 = 2;
const ISR_CFG: u8 = 3;
const DEVICE_CFG: u8 = 4;
const PCI_CFG: u8 = 5;

/// Returns vendor and device id (4.1.2.1, 4.1.2.2).
pub(super) fn id(interface: Interface) -> DeviceId {
    let device = if interface == Interface::Modern { 0x1041 } else { 0x1000 };
    DeviceId { vendor: VENDOR, device }
}

/// Creates the configuration space as after power-on.
pub(super) fn config_space(config: &VirtioConfig) -> ConfigSpace {
    let DeviceId { vendor, device } = id(config.interface);
    // A transitional device has its virtio device type as subsystem id, 1 for a network device; a modern one an
    // id of 0x40 or above.
    let (subsystem, revision) = if config.interface == Interface::Modern { (0x1100, 1) } else { (0x0001, 0) };
    let identity = Identity { vendor, device, subsystem: (vendor, subsystem), revision, class: 0x02_0000 };
    let mut space = ConfigSpace::new(&identity);
    if config.interface != Interface::Modern {
        space = space.io_bar(LEGACY_BAR, LEGACY_LEN as u32);
    }
    let msix_bar = MSIX_BAR as u32;
    space = space.memory_bar(MSIX_BAR, MSIX_BAR_LEN).msix(
        MSIX,
        config.vectors() as u16,
        (msix_bar, 0),
        (msix_bar, PENDING),
    );
    if config.interface == Interface::Legacy {
        return space;
    }
    let structure = |kind: u8, offset: usize, len: usize, more: &[u8]| {
        let place = [offset as u32, len as u32].map(u32::to_le_bytes);
        [&[kind, MODERN_BAR as u8, 0, 0, 0], place.as_flattened(), more].concat()
    };
    let notify = MULTIPLIER * config.queues();
    space
        .memory_bar(MODERN_BAR, MODERN_LEN as u64)
        .vendor_specific(0x60, &structure(COMMON_CFG, COMMON, COMMON_LEN, &[]))
        .vendor_specific(0x70, &structure(ISR_CFG, ISR, 1, &[]))
        .vendor_specific(0x80, &structure(DEVICE_CFG, DEVICE, CONFIG_LEN, &[]))
        .vendor_specific(0x90, &structure(NOTIFY_CFG, NOTIFY, notify, &(MULTIPLIER as u32).to_le_bytes()))
        .vendor_specific(WINDOW, &structure(PCI_CFG, 0, 0, &[0; 4]))
}
