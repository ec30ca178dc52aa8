//! What a server answers beyond a header: written by the server, read by the client.

use rustix::io::Errno;

use crate::Refusal;
use crate::message::{Body, Fields};

/// Reply to `DEVICE_GET_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Regions.
    pub regions: u32,
    /// Types of interrupts.
    pub irqs: u32,
}

/// `VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI`.
const RESET_AND_PCI: u32 = 0b11;

/// Reply to `DEVICE_GET_IRQ_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// Which type.
    pub index: u32,
    /// Interrupts of that type; 0 for none.
    pub count: u32,
}

/// `VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE`, without the latter: vectors are set one by one.
const EVENTFD: u32 = 1;

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Where registers that are written for each burst lie in a region of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// Offset of the first register in BAR 0, bytes to the next, and how many there are.
    pub register: [u32; 3],
    /// Offset of the first cell in the region, and bytes to the next.
    pub cell: [u32; 2],
}

impl Cells {
    /// The cell of a register.
    pub fn of(&self, register: u32) -> Option<u32> {
        let ([first, stride, count], [cell, cell_stride]) = (self.register, self.cell);
        let distance = register.checked_sub(first)?;
        let index = distance.checked_div(stride)?;
        let found = distance.is_multiple_of(stride) && index < count;
        found.then_some(())?;
        index.checked_mul(cell_stride)?.checked_add(cell)
    }
}

/// What a region of doorbells says of itself: a capability of Ringpass's own in the region's information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doorbells {
    /// Where the word lies that says whether the device sleeps. Its eventfd is the region's only ioeventfd.
    pub asleep: u32,
    /// The cells.
    pub cells: Vec<Cells>,
}

/// Reply to `DEVICE_GET_REGION_INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Which region.
    pub index: u32,
    /// Bytes; 0 for none.
    pub size: u64,
    /// May be read by messages.
    pub readable: bool,
    /// May be written by messages.
    pub writable: bool,
    /// May be mapped: the reply has a descriptor.
    pub mappable: bool,
    /// Where the region begins in the file of that descriptor.
    pub offset: u64,
    /// What may be mapped, if not all of it.
    pub areas: Vec<Area>,
    /// Of a region behind the standard ones: what it is.
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
    /// Ringpass's own; clients pass over capabilities that they do not know.
    pub const DOORBELLS: u16 = 0x5250;
}

/// Type of the region of doorbells: one of a PCI vendor's own (bit 31), here the vendor that the kernel has for virtual
/// devices without one.
const REGION_TYPE: u32 = 1 << 31 | 0x1b36;
/// Its subtype.
const REGION_SUBTYPE: u32 = 0x5250;

/// Bytes of a region's information without capabilities.
const REGION_INFO: usize = 32;

/// An ioeventfd: a write to this place may be replaced by one to the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoEvent {
    /// Where in the region.
    pub offset: u64,
    /// How many bytes.
    pub size: u64,
    /// Which of the reply's descriptors.
    pub fd: u32,
}

/// Bytes of an [`IoEvent`], and of what comes before them.
const IO_EVENT: usize = 40;
const IO_EVENTS: usize = 16;

/// A reply as far as the client has room for it: whole, or its first `fixed` bytes, which say how long the whole is.
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
    /// The reply, and whether it has room for the descriptor's offsets: if not, the client will ask again.
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
            for Cells { register, cell } in &doorbells.cells {
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
        let (_argsz, flags, index, first) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        let (size, offset) = (f.u64()?, f.u64()?);
        let has = |bit| flags & bit != 0;
        let (readable, writable, mappable) = (has(flag::READ), has(flag::WRITE), has(flag::MMAP));
        let mut info = Self { index, size, readable, writable, mappable, offset, ..Default::default() };
        let (mut at, mut before) = (if has(flag::CAPS) { first as usize } else { 0 }, REGION_INFO - 1);
        while at != 0 {
            // Only forwards, so that the list ends.
            let inside = at > before && at < body.len();
            let bytes = body.get(at..).filter(|_| inside).ok_or_else(|| Refusal::invalid("a capability nowhere"))?;
            let mut f = Fields(bytes);
            let (id, _version, next) = (f.u16()?, f.u16()?, f.u32()?);
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
                        doorbells.cells.push(Cells { register, cell });
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
        let (_argsz, _flags, _index, count) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        let mut events = Vec::new();
        for _ in 0..count {
            let (offset, size, fd, kind) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
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
        let cells = vec![Cells { register: [0x1018, 0x40, 64], cell: [0, 64] }; 3];
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
        let cells = Cells { register: [0x1018, 0x40, 64], cell: [0x100, 64] };
        let found = [0x1018, 0x1058, 0x1018 + 63 * 0x40, 0x1018 + 64 * 0x40, 0x1014, 0x101c].map(|r| cells.of(r));
        assert_eq!(found, [Some(0x100), Some(0x140), Some(0x100 + 63 * 64), None, None, None]);
        assert_eq!(Cells { register: [0, 0, 1], cell: [0, 0] }.of(0), None);
    }
}
