//! PCI devices through VFIO (Linux, driver-api/vfio), which any user may use whom the device's group belongs to. The
//! IOMMU keeps the device to the memory that it was given.

mod group;
mod info;
mod request;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringpass_memory::{Addressing, DmaRegion};
use ringpass_port::Error;
use ringpass_registers::Window;
use rustix::event::{EventfdFlags, eventfd};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_RESET, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSI_IRQ_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
};

use self::group::Group;
pub use self::group::group_of;
use crate::bar::MappedBar;
use crate::command::{BUS_MASTER, COMMAND, MEMORY};
use crate::{Bus, DeviceId, SysfsPci};

/// Whether the device at a PCI address is bound to the kernel's driver `vfio-pci`.
pub fn is_bound(address: &str) -> bool {
    SysfsPci::kernel_driver(address).as_deref() == Some("vfio-pci")
}

/// A PCI device that VFIO has given to this process. Dropped in the order of its fields: the kernel stops the device
/// when it is closed, and then the group takes the memory from it.
pub struct Vfio {
    address: String,
    id: DeviceId,
    bar: Arc<MappedBar>,
    /// Where the configuration space lies in the device's file.
    config: u64,
    device: OwnedFd,
    group: Arc<Group>,
}

impl Vfio {
    /// Opens the device at a PCI address, resets it and maps BAR 0.
    pub fn open(address: &str) -> Result<Arc<Self>, Error> {
        let id = SysfsPci::identify(address)?;
        let wrong =
            |what| move |source: io::Error| Error::Os { what: format!("{address} through VFIO: {what}"), source };
        let group = Group::of(address)?;
        let device = group.device(address)?;
        let flags = request::device_flags(&device).map_err(wrong("asking about the device"))?;
        if flags & VFIO_DEVICE_FLAGS_RESET != 0 {
            // Whatever the device did for its last owner ends here.
            request::reset(&device).map_err(wrong("resetting the device"))?;
        }
        let region = |index| request::region(&device, index).map_err(wrong("asking about its registers"));
        let config = region(VFIO_PCI_CONFIG_REGION_INDEX)?.offset;
        // Before the BAR is touched: without it, that would be a SIGBUS.
        change_command(&device, config, MEMORY, MEMORY | BUS_MASTER).map_err(wrong("turning on its registers"))?;
        let bar = region(VFIO_PCI_BAR0_REGION_INDEX)?;
        if bar.flags & VFIO_REGION_INFO_FLAG_MMAP == 0 {
            let why = "BAR 0 cannot be mapped (it is no memory, or smaller than a page)";
            return Err(Error::Other(format!("{address} through VFIO: {why}; this card cannot be driven")));
        }
        let bar = MappedBar::new(&device, bar.offset, bar.size as usize).map_err(wrong("mapping BAR 0"))?;
        Ok(Arc::new(Self { address: address.into(), id, bar: Arc::new(bar), config, device, group }))
    }
}

/// Changes the bits of `mask` in the command register, the only one of the configuration space that is ever written.
fn change_command(device: &OwnedFd, config: u64, bits: u16, mask: u16) -> io::Result<()> {
    let mut command = [0; 2];
    if rustix::io::pread(device, &mut command, config + COMMAND)? != command.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let command = u16::from_le_bytes(command) & !mask | bits;
    match rustix::io::pwrite(device, &command.to_le_bytes(), config + COMMAND)? {
        2 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

impl Drop for Vfio {
    fn drop(&mut self) {
        let _ = self.set_bus_master(false);
    }
}

impl Bus for Vfio {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn description(&self) -> String {
        let group = self.group.number();
        format!("PCI through VFIO (group {group}): the IOMMU keeps the card to the memory of its packets and rings")
    }

    fn window(&self) -> Result<Window, Error> {
        Ok(Window::new(self.bar.clone()))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn numa_node(&self) -> Option<u32> {
        SysfsPci::numa_node_of(&self.address)
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.group.map(&self.address, region)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        let bits = if on { BUS_MASTER } else { 0 };
        let changed = change_command(&self.device, self.config, bits, BUS_MASTER);
        changed.map_err(|source| Error::Os { what: format!("{}: bus master", self.address), source })
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<OwnedFd>, Error> {
        let wrong = |source| Error::Os { what: format!("{}: interrupts through VFIO", self.address), source };
        let mut most = 0;
        for kind in [VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX] {
            let count = request::vectors(&self.device, kind).map_err(wrong)?;
            if count >= vectors {
                let event = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(io::Error::from);
                let events: Vec<OwnedFd> = (0..vectors).map(event).collect::<Result<_, _>>().map_err(wrong)?;
                request::set_vectors(&self.device, kind, &events).map_err(wrong)?;
                return Ok(events);
            }
            most = most.max(count);
        }
        match most {
            0 => Ok(Vec::new()),
            most => {
                let what = format!("{}: {vectors} interrupt vectors; the card has {most}", self.address);
                Err(Error::Other(format!("{what}; use fewer queues")))
            }
        }
    }
}
