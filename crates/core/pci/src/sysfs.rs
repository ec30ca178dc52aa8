//! PCI devices through sysfs, as root and without an IOMMU. Registers are mapped or reached at I/O ports, bus
//! mastering is set in the configuration space, and DMA addresses are physical. The kernel driver is unbound
//! first, and bound again when the device is dropped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::registers::{IoRegion, Window};
use ringpass_memory::{Addressing, DmaRegion, ForeignMemory};
use ringpass_port::Error;
use rustix::fs::FlockOperation;
use rustix::param::page_size;

use crate::bar::{BARS, MappedBar};
use crate::command::{BUS_MASTER, COMMAND, INTX_DISABLE, IO, MEMORY};
use crate::io_ports::IoPorts;
use crate::region_io::{FileIo, IndirectRegion, read_at, write_at};
use crate::{DeviceId, PciDevice};

pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";

/// Returns the PCI addresses of all devices, sorted.
pub fn list_devices() -> Vec<String> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let mut addresses: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    addresses.sort();
    addresses
}

/// A PCI device that was unbound from its kernel driver.
pub struct SysfsPci {
    address: String,
    directory: PathBuf,
    id: DeviceId,
    /// The driver's `bind` file, which gives the device back. Opened at the start, because the sandbox allows
    /// no file to be opened.
    bind: Option<File>,
    config: File,
    /// Value of the command register when the device was opened.
    command: u16,
    bars: [BarInfo; BARS],
    mapped: [OnceLock<Arc<MappedBar>>; BARS],
}

/// Address, size and kind of a BAR, from the file `resource`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BarInfo {
    start: u64,
    len: u64,
    kind: BarKind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BarKind {
    #[default]
    None,
    Memory,
    IoPorts,
}

/// Parses the text of the file `resource`. Its line for each BAR holds the first address, the last address and
/// the kernel's flags (linux/ioport.h).
fn bars(text: &str) -> [BarInfo; BARS] {
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut bars = [BarInfo::default(); BARS];
    for (bar, line) in bars.iter_mut().zip(text.lines()) {
        let mut numbers = line.split_whitespace().map_while(number);
        let (Some(start), Some(end), Some(flags)) = (numbers.next(), numbers.next(), numbers.next()) else { continue };
        let kind = match flags & 0x300 {
            0x100 => BarKind::IoPorts,
            0x200 => BarKind::Memory,
            _ => continue,
        };
        if let Some(len) = end.checked_sub(start).and_then(|len| len.checked_add(1)) {
            *bar = BarInfo { start, len, kind };
        }
    }
    bars
}

/// Reads a file of the device that holds one number.
fn number(directory: &Path, file: &str) -> Option<u32> {
    let text = fs::read_to_string(directory.join(file)).ok()?;
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
}

impl SysfsPci {
    /// Returns the vendor and device id of the function at a PCI address.
    pub fn identify(address: &str) -> Result<DeviceId, Error> {
        let directory = Path::new(DEVICES).join(address);
        let id = number(&directory, "vendor").zip(number(&directory, "device"));
        let missing =
            || Error::NotFound(format!("no PCI device at {address}; 'ringpass list' shows the network cards"));
        id.map(|(vendor, device)| DeviceId { vendor: vendor as u16, device: device as u16 }).ok_or_else(missing)
    }

    /// Returns the names of the device's kernel network interfaces.
    pub fn interfaces(address: &str) -> Vec<String> {
        let entries = fs::read_dir(Path::new(DEVICES).join(address).join("net")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Returns the name of the kernel driver that the device is bound to.
    pub fn kernel_driver(address: &str) -> Option<String> {
        let link = fs::read_link(Path::new(DEVICES).join(address).join("driver")).ok()?;
        Some(link.file_name()?.to_str()?.to_owned())
    }

    /// Returns the NUMA node of the device at a PCI address; `None` if the kernel knows none.
    pub fn numa_node_of(address: &str) -> Option<u32> {
        // The kernel writes -1 for none, which does not parse as `u32`.
        number(&Path::new(DEVICES).join(address), "numa_node")
    }

    /// Takes the device from its kernel driver. On failure the device is left as it was.
    pub fn open(address: &str) -> Result<Arc<Self>, Error> {
        let id = Self::identify(address)?;
        let directory = Path::new(DEVICES).join(address);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| refused(address, &path, source)
        };
        let path = directory.join("config");
        let config = OpenOptions::new().read(true).write(true).open(&path).map_err(failed(&path))?;
        let path = directory.join("resource");
        let bars = bars(&fs::read_to_string(&path).map_err(failed(&path))?);
        rustix::fs::flock(&config, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::Busy(format!("{address} is driven by another Ringpass already; end that one first")))?;
        let mut command = [0; 2];
        config.read_exact_at(&mut command, COMMAND).map_err(failed(&directory))?;
        let mut bind = None;
        if let Ok(driver) = fs::canonicalize(directory.join("driver")) {
            let path = driver.join("bind");
            bind = Some(OpenOptions::new().write(true).open(&path).map_err(failed(&path))?);
            let path = driver.join("unbind");
            fs::write(&path, address).map_err(failed(&path))?;
        }
        // From here on, dropping `device` undoes everything.
        let (address, command) = (address.into(), u16::from_le_bytes(command));
        let device = Self { address, directory, id, bind, config, command, bars, mapped: Default::default() };
        device.set_bus_master(false)?;
        Ok(Arc::new(device))
    }

    fn write_command(&self, command: u16) -> Result<(), Error> {
        let written = write_at(&self.config, COMMAND, &command.to_le_bytes());
        written.map_err(|source| refused(&self.address, &self.directory.join("config"), source))
    }

    /// Opens the file through which the kernel exposes a BAR.
    fn resource(&self, bar: usize) -> Result<File, Error> {
        let path = self.directory.join(format!("resource{bar}"));
        let file = OpenOptions::new().read(true).write(true).open(&path);
        file.map_err(|source| refused(&self.address, &path, source))
    }

    /// Returns a memory BAR, which is mapped on the first call.
    fn map_bar(&self, bar: usize) -> Result<Arc<MappedBar>, Error> {
        if let Some(mapped) = self.mapped[bar].get() {
            return Ok(mapped.clone());
        }
        let mapping = |source| Error::os(format!("mapping BAR {bar} of {}", self.address), source);
        let BarInfo { start, len, kind } = self.bars[bar];
        if kind != BarKind::Memory {
            return Err(mapping(io::Error::other("it is not memory; this card cannot be driven")));
        }
        let file = self.resource(bar)?;
        let skip = start as usize % page_size();
        let mapped = Arc::new(MappedBar::new(&file, 0, skip, len as usize).map_err(mapping)?);
        Ok(self.mapped[bar].get_or_init(|| mapped).clone())
    }

    /// Returns I/O ports, reached by the fastest way that is permitted.
    fn io_ports(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        let BarInfo { start, len, .. } = self.bars[bar];
        Ok(match IoPorts::open(start, len) {
            Ok(io_ports) => Arc::new(io_ports),
            Err(why) => Arc::new(IndirectRegion {
                region_io: FileIo { file: self.resource(bar)?, start: 0 },
                len: len as usize,
                description: format!("I/O ports by calls of the kernel (sysfs), as in and out are not allowed: {why}"),
            }),
        })
    }
}

fn refused(address: &str, path: &Path, source: io::Error) -> Error {
    let remedy = if source.kind() == io::ErrorKind::PermissionDenied { " (run as root)" } else { "" };
    Error::os(format!("taking {address}: {}{remedy}", path.display()), source)
}

impl Drop for SysfsPci {
    fn drop(&mut self) {
        self.mapped = Default::default();
        let _ = self.write_command(self.command & !BUS_MASTER);
        if let Some(bind) = &mut self.bind {
            let _ = bind.write_all(self.address.as_bytes());
        }
    }
}

impl PciDevice for SysfsPci {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn description(&self) -> String {
        let kind = self.directory.join("iommu_group/type");
        let advice = match fs::read_to_string(kind).as_deref().map(str::trim) {
            Err(_) => "behind an IOMMU, VFIO would keep the card to its own memory",
            Ok("identity") => "VFIO would keep the card to its own memory: bind it to vfio-pci",
            Ok(_) => "the IOMMU lets these pass for cards alone that bypass it: bind this one to vfio-pci",
        };
        format!("PCI through sysfs with physical addresses; {advice}")
    }

    fn window(&self) -> Result<Window, Error> {
        Ok(Window::new(self.map_bar(0)?))
    }

    fn region(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        match self.bars.get(bar).map(|bar| bar.kind) {
            Some(BarKind::Memory) => Ok(self.map_bar(bar)?),
            Some(BarKind::IoPorts) => self.io_ports(bar),
            Some(BarKind::None) | None => Err(Error::Unsupported(format!("{} has no BAR {bar}", self.address))),
        }
    }

    fn memory(&self, bar: usize, len: usize) -> Result<Arc<ForeignMemory>, Error> {
        let there = self.bars.get(bar).copied().unwrap_or_default();
        if there.kind != BarKind::Memory || len as u64 > there.len {
            let size = there.len;
            return Err(Error::Unsupported(format!(
                "{}: {len} bytes of memory at BAR {bar}, which has {size}",
                self.address
            )));
        }
        Ok(ForeignMemory::map_device(self.resource(bar)?.as_fd(), 0, len)?)
    }

    fn read_config(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        read_at(&self.config, offset as u64, out).map_err(|source| {
            let what = format!("{}: reading its configuration space at {offset:#x}", self.address);
            Error::os(what, source)
        })
    }

    fn addressing(&self) -> Addressing {
        Addressing::Physical
    }

    fn numa_node(&self) -> Option<u32> {
        Self::numa_node_of(&self.address)
    }

    fn map(&self, _region: &Arc<DmaRegion>) -> Result<(), Error> {
        // Without an IOMMU the device can access all memory.
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        let master = if on { BUS_MASTER } else { 0 };
        let io_ports = if self.bars.iter().any(|bar| bar.kind == BarKind::IoPorts) { IO } else { 0 };
        self.write_command(self.command & !BUS_MASTER | MEMORY | io_ports | INTX_DISABLE | master)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_found_in_the_kernels_words() {
        // A transitional virtio card of QEMU, a range that ends before its start, and a truncated line.
        let text = "0x000000000000c040 0x000000000000c05f 0x0000000000040101\n\
                    0x00000000febd1000 0x00000000febd1fff 0x0000000000040200\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x0000000000000002 0x0000000000000001 0x0000000000000200\n\
                    0x00000000fe000000 0x00000000fe003fff 0x000000000014220c\n\
                    0x0000000000000000 zero";
        let bar = |start, len, kind| BarInfo { start, len, kind };
        let none = BarInfo::default();
        let last = [none, bar(2, 0, BarKind::Memory), bar(0xfe00_0000, 0x4000, BarKind::Memory), none];
        let first = [bar(0xc040, 32, BarKind::IoPorts), bar(0xfebd_1000, 4096, BarKind::Memory)];
        assert_eq!(bars(text)[..2], first);
        assert_eq!(bars(text)[2..], [last[0], none, last[2], none], "an end before its start");
        assert_eq!(bars(""), [none; BARS]);
    }
}
