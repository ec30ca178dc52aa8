//! The device with a port's memory.

use std::sync::Arc;

use ringpass_memory::{ForeignMemory, Memory};
use ringpass_netmap::Buffers;
use ringpass_pci::registers::ptnet::memdev::{DEVICE, ID, MEMORY_BAR, POOLS, SIZE};
use ringpass_pci::registers::ptnet::{VENDOR, port};
use ringpass_pci::{DeviceId, PciDevice, SysfsPci, list_devices, open_pci};
use ringpass_port::Error;

/// Returns a description of the device if it is a netmap port.
pub fn supports(id: DeviceId) -> Option<&'static str> {
    (id == DeviceId { vendor: VENDOR, device: port::DEVICE }).then_some("netmap port (ptnet)")
}

const MEMDEV: DeviceId = DeviceId { vendor: VENDOR, device: DEVICE };

/// Opens the first available PCI device whose memory has this number.
pub fn find_memory(number: u16) -> Result<Arc<dyn PciDevice>, Error> {
    let mut why = "there is none".to_owned();
    for address in list_devices() {
        if SysfsPci::identify(&address).is_ok_and(|id| id == MEMDEV) {
            match open_pci(&address).and_then(|bus| Ok((read_number(&*bus)?, bus))) {
                Ok((found, bus)) if found == number => return Ok(bus),
                Ok((found, _)) => why = format!("{address} has number {found}"),
                Err(error) => why = error.to_string(),
            }
        }
    }
    let what = format!("no memory device (1b36:000c) with number {number} for this netmap port: {why}");
    Err(Error::NotFound(format!("{what}; its host passes both devices")))
}

fn read_number(bus: &dyn PciDevice) -> Result<u16, Error> {
    Ok(bus.region(0)?.read32(ID as usize) as u16)
}

/// Maps a port's memory. Returns it with the buffers in it.
pub(crate) fn map(bus: &dyn PciDevice, number: u16) -> Result<(Memory, Buffers), Error> {
    let wrong = |why: String| Error::Fault(format!("the memory device (1b36:000c) of this netmap port: {why}"));
    if bus.id() != MEMDEV {
        let DeviceId { vendor, device } = bus.id();
        return Err(wrong(format!("it is a {vendor:04x}:{device:04x}")));
    }
    let registers = bus.region(0)?;
    let read = |at: u64| registers.read32(at as usize);
    let found = read(ID);
    if found as u16 != number {
        return Err(wrong(format!("it has memory {found}, the port {number}")));
    }
    let [low, high] = SIZE.map(read);
    let len = u64::from(high) << 32 | u64::from(low);
    let len = usize::try_from(len).ok().filter(|len| *len > 0 && len.is_multiple_of(4096) && high != u32::MAX);
    let len = len.ok_or_else(|| wrong(format!("{high:#x}{low:08x} bytes of memory")))?;
    let mapped: Arc<ForeignMemory> = bus.memory(MEMORY_BAR as usize, len)?;
    let memory = Memory::from(mapped);
    let [start, count, size] = POOLS[2].map(read);
    let buffers = Buffers::new(&memory, start as usize, count, size)
        .ok_or_else(|| wrong(format!("{count} buffers of {size} bytes from {start:#x} on, in {len:#x} bytes")))?;
    Ok((memory, buffers))
}
