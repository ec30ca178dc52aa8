//! PCI capabilities of a card: where the structures of the modern interface lie (VIRTIO 1.3, 4.1.4), and
//! whether MSI-X is enabled.

use ringpass_pci::PciDevice;
use ringpass_port::Error;

// PCI Local Bus 3.0, 6.1 and 6.7.
const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u16 = 1 << 4;
const FIRST: usize = 0x34;
/// Capability IDs.
const VENDOR: u8 = 0x09;
const MSIX: u8 = 0x11;
/// Capabilities lie between these offsets, behind the header, and take at least four bytes each.
const HEADER: usize = 0x40;
const END: usize = 0x100;
const MAX_CAPABILITIES: usize = (END - HEADER) / 4;

/// Types of structures.
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;
/// Number of BARs; higher BAR numbers are reserved.
const BARS: u8 = 6;

/// Location of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) bar: usize,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// The structures that a polling driver needs, and the multiplier of notification offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Structures {
    pub(super) common: Location,
    pub(super) notify: Location,
    pub(super) multiplier: u32,
    /// The device-specific configuration; absent on devices that have none.
    pub(super) device: Option<Location>,
}

fn read<const N: usize>(bus: &dyn PciDevice, offset: usize) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    bus.read_config(offset, &mut bytes).map(|()| bytes)
}

fn read16(bus: &dyn PciDevice, offset: usize) -> Result<u16, Error> {
    read(bus, offset).map(u16::from_le_bytes)
}

fn read32(bus: &dyn PciDevice, offset: usize) -> Result<u32, Error> {
    read(bus, offset).map(u32::from_le_bytes)
}

/// Returns ID and offset of each capability, in the order of the list.
fn list(bus: &dyn PciDevice) -> Result<Vec<(u8, usize)>, Error> {
    let mut found = Vec::new();
    if read16(bus, STATUS)? & HAS_CAPABILITIES == 0 {
        return Ok(found);
    }
    let [mut next] = read(bus, FIRST)?;
    // The low two bits are reserved; 0 ends the list.
    while next & !3 != 0 {
        let at = usize::from(next & !3);
        if at < HEADER {
            return Err(wrong(format!("has a member at {at:#x}, inside the header")));
        }
        if found.len() == MAX_CAPABILITIES {
            return Err(wrong("does not end".into()));
        }
        let [id, following] = read(bus, at)?;
        found.push((id, at));
        next = following;
    }
    Ok(found)
}

fn wrong(how: String) -> Error {
    Error::Fault(format!("the list of the card's PCI capabilities {how}, so the card cannot be driven"))
}

/// Returns the modern interface's structures; `None` if the card has no such interface. The first structure of
/// each type is used; reserved types and BARs are skipped (4.1.4.1).
pub(super) fn structures(bus: &dyn PciDevice) -> Result<Option<Structures>, Error> {
    let mut common = None;
    let mut notify = None;
    let mut device = None;
    let mut multiplier = 0;
    let mut any = false;
    for (id, at) in list(bus)? {
        if id != VENDOR {
            continue;
        }
        // struct virtio_pci_cap, which a notification structure extends by a multiplier.
        if at + 16 > END {
            return Err(wrong(format!("has a structure at {at:#x} that does not fit")));
        }
        let [len, kind, bar] = read(bus, at + 2)?;
        let slot = match kind {
            COMMON => &mut common,
            NOTIFY => &mut notify,
            DEVICE => &mut device,
            _ => continue,
        };
        any = true;
        if bar >= BARS || slot.is_some() {
            continue;
        }
        let place =
            Location { bar: bar.into(), offset: read32(bus, at + 8)? as usize, len: read32(bus, at + 12)? as usize };
        if kind == NOTIFY {
            if len < 20 || at + 20 > END {
                return Err(wrong(format!("has a notification structure of {len} bytes at {at:#x}; it takes 20")));
            }
            multiplier = read32(bus, at + 16)?;
        }
        *slot = Some(place);
    }
    if !any {
        return Ok(None);
    }
    let lacks = |what| wrong(format!("lacks the {what} structure of virtio, in a BAR that exists"));
    let common = common.ok_or_else(|| lacks("common configuration"))?;
    let notify = notify.ok_or_else(|| lacks("notification"))?;
    Ok(Some(Structures { common, notify, multiplier, device }))
}

/// Returns the offset of the MSI-X control register in configuration space, if the card has MSI-X.
pub(super) fn msix_control(bus: &dyn PciDevice) -> Result<Option<usize>, Error> {
    Ok(list(bus)?.into_iter().find(|&(id, _)| id == MSIX).map(|(_, at)| at + 2))
}

/// Returns whether MSI-X is enabled in its control register (PCI Local Bus 3.0, 6.8.2.3).
pub(super) fn msix_is_on(bus: &dyn PciDevice, control: usize) -> Result<bool, Error> {
    Ok(read16(bus, control)? & 1 << 15 != 0)
}
