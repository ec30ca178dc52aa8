//! PCI devices through sysfs, as root and without an IOMMU: BAR 0 by mmap, bus mastering by configuration space,
//! addresses physical. The kernel driver is unbound first, and bound again when the device is given back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringpass_memory::{Addressing, DmaRegion};
use ringpass_port::Error;
use ringpass_registers::Window;
use rustix::fs::FlockOperation;

use crate::bar::MappedBar;
use crate::command::{BUS_MASTER, COMMAND, MEMORY};
use crate::{Bus, DeviceId};

pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";

/// PCI addresses of all devices, in order.
pub fn present() -> Vec<String> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let mut addresses: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    addresses.sort();
    addresses
}

/// A PCI device that was taken from its kernel driver.
pub struct SysfsPci {
    address: String,
    directory: PathBuf,
    id: DeviceId,
    /// Gives the device back to its kernel driver. Open from the start: no file can be opened in the sandbox.
    bind: Option<File>,
    config: File,
    /// The command register as it was found.
    command: u16,
    bar: Option<Arc<MappedBar>>,
}

/// Reads a file of the device's that holds one number.
fn number(directory: &Path, file: &str) -> Option<u32> {
    let text = fs::read_to_string(directory.join(file)).ok()?;
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
}

impl SysfsPci {
    /// Vendor and device of the function at a PCI address.
    pub fn identify(address: &str) -> Result<DeviceId, Error> {
        let directory = Path::new(DEVICES).join(address);
        let id = number(&directory, "vendor").zip(number(&directory, "device"));
        let missing = || Error::Address(format!("no PCI device at {address}; 'ringpass list' shows the network cards"));
        id.map(|(vendor, device)| DeviceId { vendor: vendor as u16, device: device as u16 }).ok_or_else(missing)
    }

    /// Names of the device's kernel interfaces.
    pub fn interfaces(address: &str) -> Vec<String> {
        let entries = fs::read_dir(Path::new(DEVICES).join(address).join("net")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Name of the kernel driver that has the device.
    pub fn kernel_driver(address: &str) -> Option<String> {
        let link = fs::read_link(Path::new(DEVICES).join(address).join("driver")).ok()?;
        Some(link.file_name()?.to_str()?.to_owned())
    }

    /// The NUMA node of the device at an address; `None` where the kernel knows none.
    pub fn numa_node_of(address: &str) -> Option<u32> {
        // -1 for none does not parse.
        number(&Path::new(DEVICES).join(address), "numa_node")
    }

    /// Takes the device from its kernel driver and maps BAR 0. A failure leaves the device as it was.
    pub fn open(address: &str) -> Result<Arc<Self>, Error> {
        let id = Self::identify(address)?;
        let directory = Path::new(DEVICES).join(address);
        let open = |file: &str| {
            let path = directory.join(file);
            OpenOptions::new().read(true).write(true).open(&path).map_err(|source| refused(address, &path, source))
        };
        let config = open("config")?;
        let resource = open("resource0")?;
        rustix::fs::flock(&config, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::Other(format!("{address} is driven by another Ringpass already; end that one first"))
        })?;
        let mut command = [0; 2];
        config.read_exact_at(&mut command, COMMAND).map_err(|source| refused(address, &directory, source))?;
        let mut bind = None;
        if let Ok(driver) = fs::canonicalize(directory.join("driver")) {
            let path = driver.join("bind");
            let file = OpenOptions::new().write(true).open(&path);
            bind = Some(file.map_err(|source| refused(address, &path, source))?);
            let path = driver.join("unbind");
            fs::write(&path, address).map_err(|source| refused(address, &path, source))?;
        }
        // From here on dropping the device undoes all that was done.
        let command = u16::from_le_bytes(command);
        let mut device = Self { address: address.into(), directory, id, bind, config, command, bar: None };
        device.write_command(command | MEMORY)?;
        let mapping = |source| Error::Os { what: format!("mapping BAR 0 of {address}"), source };
        let len = resource.metadata().map_err(mapping)?.len() as usize;
        device.bar = Some(Arc::new(MappedBar::new(&resource, 0, len).map_err(mapping)?));
        Ok(Arc::new(device))
    }

    fn write_command(&self, command: u16) -> Result<(), Error> {
        let written = self.config.write_all_at(&command.to_le_bytes(), COMMAND);
        written.map_err(|source| refused(&self.address, &self.directory.join("config"), source))
    }
}

fn refused(address: &str, path: &Path, source: io::Error) -> Error {
    let remedy = if source.kind() == io::ErrorKind::PermissionDenied { " (run as root)" } else { "" };
    Error::Os { what: format!("taking {address}: {}{remedy}", path.display()), source }
}

impl Drop for SysfsPci {
    fn drop(&mut self) {
        self.bar = None;
        let _ = self.write_command(self.command & !BUS_MASTER);
        if let Some(bind) = &mut self.bind {
            let _ = bind.write_all(self.address.as_bytes());
        }
    }
}

impl Bus for SysfsPci {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn description(&self) -> String {
        "PCI through sysfs with physical addresses; behind an IOMMU, VFIO would keep the card to its own memory".into()
    }

    fn window(&self) -> Result<Window, Error> {
        Ok(Window::new(self.bar.clone().expect("mapped until dropped")))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Physical
    }

    fn numa_node(&self) -> Option<u32> {
        Self::numa_node_of(&self.address)
    }

    fn map(&self, _region: &Arc<DmaRegion>) -> Result<(), Error> {
        // Without an IOMMU the device reaches all memory.
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        let master = if on { BUS_MASTER } else { 0 };
        self.write_command(self.command & !BUS_MASTER | MEMORY | master)
    }
}
