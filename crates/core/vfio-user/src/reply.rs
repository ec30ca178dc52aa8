//! Bodies of replies, encoded by the server and parsed by the client.

use rustix::io::Errno;

use crate::Refusal;
use crate::message::{Body, Fields};

/// Reply to `DEVICE_GET_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of regions.
    pub regions: u32,
    /// Number of interrupt types.
    pub irqs: u32,
}

/// `VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI`.
const RESET_AND_PCI: u32 = 0b11;

/// Reply to `DEVICE_GET_IRQ_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// Index of the interrupt type.
    pub index: u32,
    /// Number of interrupts of that type; 0 if there are none.
    pub count: u32,
}

/// `VFIO_IRQ_INFO_EVENTFD` without `VFIO_IRQ_INFO_NORESIZE`: vectors can be set one by one.
const EVENTFD: u32 = 1;

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Offset of the first byte.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// Maps an array of registers that are written once a burst to cells in a region of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellArray {
    /// Offset of the first register in BAR 0, distance between registers in bytes, and their number.
    pub register: [u32; 3],
    /// Offset of the first cell in the region, and distance between cells in bytes.
    pub cell: [u32; 2],
}

impl DoorbellArray {
    /// Returns the offset of a register's cell in the region, if the register belongs to this array.
    pub fn of(&self, register: u32) -> Option<u32> {
        let ([first, stride, count], [cell, cell_stride]) = (self.register, self.cell);
        let distance = register.checked_sub(first)?;
        let index = distance.checked_div(stride)?;
        let found = distance.is_multiple_of(stride) && index < count;
        found.then_some(())?;
        index.checked_mul(cell_stride)?.checked_add(cell)
    }
}

/// Layout of a region of doorbells: a capability of Ringpass's own in the region's information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doorbells {
    /// Offset of the word that says whether the device sleeps. Its eventfd is the region's only ioeventfd.
    pub asleep: u32,
    /// The arrays of cells.
    pub cells: Vec<DoorbellArray>,
}

/// Reply to `DEVICE_GET_REGION_INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Index of the region.
    pub index: u32,
    /// Size in bytes; 0 if there is no such region.
    pub size: u64,
    /// Whether it may be read by messages.
    pub readable: bool,
    /// Whether it may be written by messages.
    pub writable: bool,
    /// Whether it may be mapped; the reply then carries a descriptor.
    pub mappable: bool,
    /// Offset of the region in the file of that descriptor.
    pub offset: u64,
    /// Areas that may be mapped; if empty, the whole region.
    pub areas: Vec<Area>,
    /// Layout of the doorbells, only for a region after the standard ones.
    pub doorbells: Option<Doorbells>,
}

/// `VFIO_REGION_INFO_FLAG_*`.
mod flag {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const MMAP: u32 = 4;
    pub const CAPS: u32 = 8;
}

/// `VFIO_REGION_INFO_CAP_*`.
mod cap {
    pub const SPARSE_MMAP: u16 = 1;
    pub const TYPE: u16 = 2;
    /// Ringpass's own capability. Clients skip capabilities that they do not know.
    pub const DOORBELLS: u16 = 0x5250;
}

/// Type of the region of doorbells: one of a PCI vendor (bit 31), here the vendor id that the kernel uses for
/// virtual devices without a vendor of their own.
const REGION_TYPE: u32 = 1 << 31 | 0x1b36;
/// Subtype of the region of doorbells.
const REGION_SUBTYPE: u32 = 0x5250;

/// Size of a region's information without capabilities, in bytes.
const REGION_INFO: usize = 32;

/// An ioeventfd: a write to this place may be replaced by one to the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoEvent {
    /// Offset in the region.
    pub offset: u64,
    /// Size of the write in bytes.
    pub size: u64,
    /// Index of the descriptor in the reply.
    pub fd: u32,
}

/// Size of an [`IoEvent`] in bytes, and of the fields before the first one.
const IO_EVENT: usize = 40;
const IO_EVENTS: usize = 16;

/// Fits a reply to the client's room of `argsz` bytes: the whole reply, or else its first `fixed` bytes, which
/// hold the size of the whole.
fn fit(whole: Vec<u8>, fixed: usize, argsz: u32) -> Result<Vec<u8>, Refusal> {
    let mut whole = whole;
    if (argsz as usize) < fixed {
        return Err(Refusal::invalid(format!("room for {argsz} bytes of reply, where {fixed} are the least")));
    }
    if (argsz as usize) < whole.len() {
        whole.truncate(fixed);
    }
    Ok(whole)
}

/// Returns whether a reply of [`fit`] is the whole: its first word is the size of the whole.
pub(crate) fn is_whole(reply: &[u8]) -> bool {
    reply.first_chunk().is_some_and(|&size| u32::from_ne_bytes(size) as usize <= reply.len())
}

impl DeviceInfo {
    pub(crate) fn to_bytes(self, argsz: u32) -> Result<Vec<u8>, Refusal> {
        let mut b = Body::default();
        b.u32(16).u32(RESET_AND_PCI).u32(self.regions).u32(self.irqs);
        fit(b.0, 16, argsz)
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let mut f = Fields(body);
        let (_argsz, _flags) = (f.u32()?, f.u32()?);
        Ok(Self { regions: f.u32()?, irqs: f.u32()? })
    }
}

impl IrqInfo {
    pub(crate) fn to_bytes(self, argsz: u32) -> Result<Vec<u8>, Refusal> {
        let mut b = Body::default();
        b.u32(16).u32(EVENTFD).u32(self.index).u32(self.count);
        fit(b.0, 16, argsz)
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let mut f = Fields(body);
        let (_argsz, _flags) = (f.u32()?, f.u32()?);
        Ok(Self { index: f.u32()?, count: f.u32()? })
    }
}

impl RegionInfo {
    /// Encodes the reply, truncated to its fixed part if the client has no room for the whole. The client then
    /// learns the size and asks again.
    pub(crate) fn to_bytes(&self, argsz: u32) -> Result<Vec<u8>, Refusal> {
        let mut caps: Vec<(u16, Body)> = Vec::new();
        if !self.areas.is_empty() {
            let mut b = Body::default();
            b.u32(self.areas.len() as u32).u32(0);
            self.areas.iter().for_each(|area| _ = b.u64(area.offset).u64(area.size));
            caps.push((cap::SPARSE_MMAP, b));
        }
        if let Some(doorbells) = &self.doorbells {
            let mut kind = Body::default();
            kind.u32(REGION_TYPE).u32(REGION_SUBTYPE);
            caps.push((cap::TYPE, kind));
            let mut b = Body::default();
            b.u32(doorbells.asleep).u32(doorbells.cells.len() as u32);
            for DoorbellArray { register, cell } in &doorbells.cells {
                register.iter().chain(cell).for_each(|&word| _ = b.u32(word));
                b.u32(0);
            }
            caps.push((cap::DOORBELLS, b));
        }
        let mut flags = if caps.is_empty() { 0 } else { flag::CAPS };
        let set = [(self.readable, flag::READ), (self.writable, flag::WRITE), (self.mappable, flag::MMAP)];
        set.iter().for_each(|&(on, bit)| flags |= if on { bit } else { 0 });
        let size = REGION_INFO + caps.iter().map(|(_, body)| 8 + body.0.len()).sum::<usize>();
        let first = if caps.is_empty() { 0 } else { REGION_INFO as u32 };
        let mut b = Body::default();
        b.u32(size as u32).u32(flags).u32(self.index).u32(first).u64(self.size).u64(self.offset);
        let last = caps.len().wrapping_sub(1);
        for (i, (id, body)) in caps.iter().enumerate() {
            let next = if i == last { 0 } else { b.0.len() + 8 + body.0.len() };
            b.u16(*id).u16(1).u32(next as u32).bytes(&body.0);
        }
        fit(b.0, REGION_INFO, argsz)
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let mut f = Fields(body);
        let _argsz = f.u32()?;
        let flags = f.u32()?;
        let index = f.u32()?;
        let first = f.u32()?;
        let (size, offset) = (f.u64()?, f.u64()?);
        let has = |bit| flags & bit != 0;
        let readable = has(flag::READ);
        let writable = has(flag::WRITE);
        let mappable = has(flag::MMAP);
        let mut info = Self { index, size, readable, writable, mappable, offset, ..Default::default() };
        let (mut at, mut before) = (if has(flag::CAPS) { first as usize } else { 0 }, REGION_INFO - 1);
        while at != 0 {
            // Offsets must increase, so that the loop ends.
            let inside = at > before && at < body.len();
            let bytes = body.get(at..).filter(|_| inside).ok_or_else(|| Refusal::invalid("a capability nowhere"))?;
            let mut f = Fields(bytes);
            let id = f.u16()?;
            let _version = f.u16()?;
            let next = f.u32()?;
            match id {
                cap::SPARSE_MMAP => {
                    let (areas, _reserved) = (f.u32()?, f.u32()?);
                    for _ in 0..areas {
                        info.areas.push(Area { offset: f.u64()?, size: f.u64()? });
                    }
                }
                cap::DOORBELLS => {
                    let (asleep, cells) = (f.u32()?, f.u32()?);
                    let mut doorbells = Doorbells { asleep, cells: Vec::new() };
                    for _ in 0..cells {
                        let register = [f.u32()?, f.u32()?, f.u32()?];
                        let cell = [f.u32()?, f.u32()?];
                        f.u32()?;
                        doorbells.cells.push(DoorbellArray { register, cell });
                    }
                    info.doorbells = Some(doorbells);
                }
                _ => {}
            }
            (before, at) = (at, next as usize);
        }
        Ok(info)
    }
}

impl IoEvent {
    pub(crate) fn all_to_bytes(index: u32, events: &[Self], argsz: u32) -> Result<Vec<u8>, Refusal> {
        let mut b = Body::default();
        let size = IO_EVENTS + IO_EVENT * events.len();
        b.u32(size as u32).u32(0).u32(index).u32(events.len() as u32);
        for event in events {
            b.u64(event.offset).u64(event.size).u32(event.fd).u32(0).u64(0).u64(0);
        }
        fit(b.0, IO_EVENTS, argsz)
    }

    pub(crate) fn parse_all(body: &[u8]) -> Result<Vec<Self>, Refusal> {
        let mut f = Fields(body);
        let _argsz = f.u32()?;
        let _flags = f.u32()?;
        let _index = f.u32()?;
        let count = f.u32()?;
        let mut events = Vec::new();
        for _ in 0..count {
            let offset = f.u64()?;
            let size = f.u64()?;
            let fd = f.u32()?;
            let kind = f.u32()?;
            let (_flags, _datamatch) = (f.u64()?, f.u64()?);
            if kind != 0 {
                return Err(Refusal::new(Errno::OPNOTSUPP, "an ioregionfd"));
            }
            events.push(Self { offset, size, fd });
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_writes_the_client_reads() {
        let cells = vec![DoorbellArray { register: [0x1018, 0x40, 64], cell: [0, 64] }; 3];
        let full = RegionInfo {
            index: 9,
            size: 20 << 10,
            mappable: true,
            offset: 4096,
            areas: vec![Area { offset: 0, size: 4096 }, Area { offset: 8192, size: 4096 }],
            doorbells: Some(Doorbells { asleep: 16384, cells }),
            ..Default::default()
        };
        let plain = RegionInfo { index: 7, size: 4096, readable: true, writable: true, ..Default::default() };
        for info in [full.clone(), plain, RegionInfo::default()] {
            assert_eq!(RegionInfo::parse(&info.to_bytes(4096).unwrap()), Ok(info));
        }
        let short = full.to_bytes(40).unwrap();
        assert_eq!(short.len(), 32);
        assert_eq!(u32::from_ne_bytes(short[..4].try_into().unwrap()) as usize, full.to_bytes(4096).unwrap().len());
        assert!(full.to_bytes(31).is_err());
        let events = [IoEvent { offset: 16384, size: 4, fd: 0 }];
        assert_eq!(IoEvent::parse_all(&IoEvent::all_to_bytes(9, &events, 4096).unwrap()).unwrap(), events);
    }

    #[test]
    fn lists_of_capabilities_end() {
        let info = RegionInfo { areas: vec![Area { offset: 0, size: 4096 }], ..Default::default() };
        let good = info.to_bytes(4096).unwrap();
        for next in [1, 31, 32, 33, 1000, u32::MAX] {
            let mut bad = good.clone();
            bad[36..40].copy_from_slice(&next.to_ne_bytes());
            assert!(RegionInfo::parse(&bad).is_err() || next == 33, "{next}");
        }
        let mut bad = good;
        bad[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(RegionInfo::parse(&bad).is_err(), "more areas than there are");
    }

    #[test]
    fn cells_are_found() {
        let cells = DoorbellArray { register: [0x1018, 0x40, 64], cell: [0x100, 64] };
        let found = [0x1018, 0x1058, 0x1018 + 63 * 0x40, 0x1018 + 64 * 0x40, 0x1014, 0x101c].map(|r| cells.of(r));
        assert_eq!(found, [Some(0x100), Some(0x140), Some(0x100 + 63 * 64), None, None, None]);
        assert_eq!(DoorbellArray { register: [0, 0, 1], cell: [0, 0] }.of(0), None);
    }
}
