//! PCI devices through VFIO (Linux, driver-api/vfio). Any user who owns the device's group can use it. The
//! IOMMU confines the device to the memory that it was given.

mod group;
mod info;
mod request;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::registers::{IoRegion, Window};
use ringpass_ipc::EventWaiter;
use ringpass_memory::{Addressing, DmaRegion, ForeignMemory};
use ringpass_port::Error;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_RESET, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSI_IRQ_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP, vfio_region_info,
};

use self::group::Group;
pub use self::group::group_of;
use crate::bar::{BARS, MappedBar};
use crate::command::{BUS_MASTER, COMMAND, INTX_DISABLE, IO, MEMORY};
use crate::region_io::{FileIo, IndirectRegion, read_at, write_at};
use crate::{DeviceId, PciDevice, SysfsPci};

/// Returns whether the device at a PCI address is bound to the kernel driver `vfio-pci`.
pub fn is_bound(address: &str) -> bool {
    SysfsPci::kernel_driver(address).as_deref() == Some("vfio-pci")
}

/// A PCI device opened through VFIO.
pub struct Vfio {
    address: String,
    id: DeviceId,
    /// Location of the configuration space in the device's file.
    config: vfio_region_info,
    mapped: [OnceLock<Arc<MappedBar>>; BARS],
    device: Arc<Device>,
}

/// The device's file, shared with the regions that are reached through it. The fields are dropped in order:
/// closing the file makes the kernel stop the device, then the group removes its mappings.
struct Device {
    file: OwnedFd,
    group: Arc<Group>,
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Vfio {
    /// Opens the device at a PCI address and resets it.
    pub fn open(address: &str) -> Result<Arc<Self>, Error> {
        let id = SysfsPci::identify(address)?;
        let group = Group::of(address)?;
        let device = Arc::new(Device { file: group.device(address)?, group });
        let wrong = |what| wrong(address, what);
        let flags = request::device_flags(&device).map_err(wrong("asking about the device"))?;
        if flags & VFIO_DEVICE_FLAGS_RESET != 0 {
            // Stops whatever the device still did for its last owner.
            request::reset(&device).map_err(wrong("resetting the device"))?;
        }
        let config = request::region(&device, VFIO_PCI_CONFIG_REGION_INDEX);
        let config = config.map_err(wrong("asking about its configuration space"))?;
        // Enable the registers before a BAR is accessed; otherwise an access would raise SIGBUS. A device
        // ignores bits for kinds of BARs that it lacks.
        let on = MEMORY | IO | INTX_DISABLE;
        change_command(&device, &config, on, on | BUS_MASTER).map_err(wrong("turning on its registers"))?;
        Ok(Arc::new(Self { address: address.into(), id, config, mapped: Default::default(), device }))
    }

    /// Returns what VFIO reports about a BAR; an error if the device lacks it.
    fn bar(&self, bar: usize) -> Result<vfio_region_info, Error> {
        let asked = if bar < BARS {
            request::region(&self.device, VFIO_PCI_BAR0_REGION_INDEX + bar as u32)
        } else {
            Ok(vfio_region_info::default())
        };
        let info = asked.map_err(wrong(&self.address, "asking about its registers"))?;
        let none = || Error::Unsupported(format!("{} through VFIO: it has no BAR {bar}", self.address));
        if info.size == 0 { Err(none()) } else { Ok(info) }
    }

    /// Returns a BAR that can be mapped; it is mapped on the first call.
    fn map_bar(&self, bar: usize, info: &vfio_region_info) -> Result<Arc<MappedBar>, Error> {
        if let Some(mapped) = self.mapped[bar].get() {
            return Ok(mapped.clone());
        }
        let mapped = MappedBar::new(&self.device, info.offset, 0, info.size as usize);
        let mapped = mapped.map_err(wrong(&self.address, &format!("mapping BAR {bar}")))?;
        Ok(self.mapped[bar].get_or_init(|| Arc::new(mapped)).clone())
    }
}

fn wrong(address: &str, what: &str) -> impl FnOnce(io::Error) -> Error {
    let what = format!("{address} through VFIO: {what}");
    move |source| Error::os(what, source)
}

/// Returns whether a region can be mapped. I/O ports cannot, nor can registers that share a page with other
/// devices.
fn mappable(info: &vfio_region_info) -> bool {
    info.flags & VFIO_REGION_INFO_FLAG_MMAP != 0
}

/// Changes the bits of `mask` in the command register, the only register of the configuration space that is
/// ever written.
fn change_command(device: &Device, config: &vfio_region_info, bits: u16, mask: u16) -> io::Result<()> {
    let mut command = [0; 2];
    read_at(device, config.offset + COMMAND, &mut command)?;
    let command = u16::from_le_bytes(command) & !mask | bits;
    write_at(device, config.offset + COMMAND, &command.to_le_bytes())
}

impl Drop for Vfio {
    fn drop(&mut self) {
        let _ = self.set_bus_master(false);
    }
}

impl PciDevice for Vfio {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn description(&self) -> String {
        let group = self.device.group.number();
        format!("PCI through VFIO (group {group}): the IOMMU keeps the card to the memory of its packets and rings")
    }

    fn window(&self) -> Result<Window, Error> {
        let info = self.bar(0)?;
        if !mappable(&info) {
            let why = "BAR 0 cannot be mapped (it is not memory, or smaller than a page)";
            return Err(Error::Unsupported(format!(
                "{} through VFIO: {why}; this card cannot be driven",
                self.address
            )));
        }
        Ok(Window::new(self.map_bar(0, &info)?))
    }

    fn region(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        let info = self.bar(bar)?;
        let why = match mappable(&info).then(|| self.map_bar(bar, &info)) {
            Some(Ok(mapped)) => return Ok(mapped),
            // Before Linux 4.16, the pages of a BAR that hold its MSI-X table could not be mapped.
            Some(Err(error)) => format!(": {error}"),
            None => ", which cannot map them".into(),
        };
        let region_io = FileIo { file: self.device.clone(), start: info.offset };
        let description = format!("registers by calls of the kernel (VFIO){why}");
        Ok(Arc::new(IndirectRegion { region_io, len: info.size as usize, description }))
    }

    fn memory(&self, bar: usize, len: usize) -> Result<Arc<ForeignMemory>, Error> {
        let info = self.bar(bar)?;
        if !mappable(&info) || len as u64 > info.size {
            let why = format!("{len} bytes of memory at BAR {bar}, which has {} or cannot be mapped", info.size);
            return Err(Error::Unsupported(format!("{} through VFIO: {why}", self.address)));
        }
        Ok(ForeignMemory::map_device(self.device.as_fd(), info.offset, len)?)
    }

    fn read_config(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let inside = offset.checked_add(out.len()).is_some_and(|end| end as u64 <= self.config.size);
        let read = if inside {
            read_at(&self.device, self.config.offset + offset as u64, out)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        };
        read.map_err(wrong(&self.address, &format!("reading its configuration space at {offset:#x}")))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn behind_iommu(&self) -> bool {
        true
    }

    fn numa_node(&self) -> Option<u32> {
        SysfsPci::numa_node_of(&self.address)
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.device.group.map(&self.address, region)
    }

    fn map_foreign(&self, memory: &Arc<ForeignMemory>) -> Result<(), Error> {
        self.device.group.map_foreign(&self.address, memory)
    }

    fn unmap_foreign(&self, memory: &Arc<ForeignMemory>) {
        self.device.group.unmap_foreign(memory);
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        let bits = if on { BUS_MASTER } else { 0 };
        let changed = change_command(&self.device, &self.config, bits, BUS_MASTER);
        changed.map_err(|source| Error::os(format!("{}: bus master", self.address), source))
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<EventWaiter>, Error> {
        let wrong = |source| Error::os(format!("{}: interrupts through VFIO", self.address), source);
        let mut most = 0;
        for kind in [VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX] {
            let count = request::vectors(&self.device, kind).map_err(wrong)?;
            if count >= vectors {
                let events: Vec<EventWaiter> =
                    (0..vectors).map(|_| EventWaiter::new()).collect::<Result<_, _>>().map_err(wrong)?;
                request::set_vectors(&self.device, kind, &events).map_err(wrong)?;
                return Ok(events);
            }
            most = most.max(count);
        }
        match most {
            0 => Ok(Vec::new()),
            most => {
                let what = format!("{}: {vectors} interrupt vectors; the card has {most}", self.address);
                Err(Error::Unsupported(format!("{what}; use fewer queues")))
            }
        }
    }
}
