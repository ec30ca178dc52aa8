//! The guest's memory, as the front-end shares it: regions of files.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringpass_memory::ForeignMemory;
use ringpass_virtio::device::{GuestMemory, GuestRegion};

use crate::message::refuse;
use crate::{Refusal, Region};

/// Regions that a guest's memory has at most.
pub const MAX_REGIONS: usize = 64;

/// A region and its mapping.
#[derive(Clone)]
struct Mapped {
    region: Region,
    /// Which file it is of.
    device: u64,
    inode: u64,
    memory: Arc<ForeignMemory>,
    /// Where in the mapping it begins.
    skip: u64,
}

/// The table. A change makes another one; regions that both have keep their mapping.
#[derive(Clone, Default)]
pub(crate) struct MemoryTable {
    regions: Vec<Mapped>,
    memory: Arc<GuestMemory>,
}

impl MemoryTable {
    /// What the rings see of it.
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// A table of these regions, each with its file ("SET_MEM_TABLE").
    pub(crate) fn replaced(&self, regions: &[Region], files: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let mapped = regions.iter().zip(files).map(|(&region, file)| self.map(region, file));
        Self::of(mapped.collect::<Result<_, _>>()?)
    }

    /// The table with one region more ("ADD_MEM_REG"). One that is there already is no other: QEMU 7.2 says each once for
    /// each pair of queues.
    pub(crate) fn with(&self, region: Region, file: OwnedFd) -> Result<Self, Refusal> {
        let added = self.map(region, file)?;
        let same = |known: &Mapped| known.region == region && Arc::ptr_eq(&known.memory, &added.memory);
        if self.regions.iter().any(same) {
            return Ok(self.clone());
        }
        if self.regions.len() >= MAX_REGIONS {
            return refuse(format!("more than {MAX_REGIONS} memory regions"));
        }
        Self::of(self.regions.iter().cloned().chain([added]).collect())
    }

    /// The table without a region, which is named by its addresses and its size ("REM_MEM_REG"). One that is not there is
    /// gone already, as QEMU 7.2 says that likewise.
    pub(crate) fn without(&self, region: &Region) -> Result<Self, Refusal> {
        let name = |region: &Region| (region.guest, region.user, region.size);
        let others = self.regions.iter().filter(|known| name(&known.region) != name(region));
        Self::of(others.cloned().collect())
    }

    /// A region's mapping: the one that the same stretch of the same file has already, if there is one.
    fn map(&self, region: Region, file: OwnedFd) -> Result<Mapped, Refusal> {
        let Ok(stat) = rustix::fs::fstat(&file) else { return refuse("a descriptor that is no file") };
        let (device, inode, len) = (stat.st_dev, stat.st_ino, stat.st_size as u64);
        let Region { offset, size, .. } = region;
        if offset.checked_add(size).is_none_or(|end| end > len) {
            return refuse(format!("a memory region of {size:#x} bytes from {offset:#x} of a file that has {len:#x}"));
        }
        let same = |known: &&Mapped| {
            (known.device, known.inode) == (device, inode) && (known.region.offset, known.region.size) == (offset, size)
        };
        if let Some(known) = self.regions.iter().find(same) {
            return Ok(Mapped { region, ..known.clone() });
        }
        // Huge pages are mapped as a whole, and regions need not begin with one: those of a PC's first megabyte do not.
        let skip = offset % stat.st_blksize.max(4096) as u64;
        // A file of so many bytes has been found, so this is no more than there can be of addresses.
        match ForeignMemory::map_shared(file, offset - skip, (skip + size) as usize) {
            Ok(memory) => Ok(Mapped { region, device, inode, memory, skip }),
            Err(error) => refuse(format!("a memory region of {size:#x} bytes: {error}")),
        }
    }

    fn of(regions: Vec<Mapped>) -> Result<Self, Refusal> {
        let guest = |Mapped { region, memory, skip, .. }: &Mapped| GuestRegion {
            guest: region.guest,
            user: region.user,
            len: region.size,
            memory: memory.clone(),
            offset: *skip,
        };
        let memory =
            GuestMemory::new(regions.iter().map(guest).collect()).map_err(|error| Refusal(error.to_string()))?;
        // None is empty or wraps round, as was just checked.
        let ends = |Mapped { region, .. }: &Mapped| (region.user, region.user + region.size);
        let mut users: Vec<(u64, u64)> = regions.iter().map(ends).collect();
        users.sort_unstable();
        if users.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return refuse("memory regions that overlap in the front-end's addresses");
        }
        Ok(Self { regions, memory })
    }
}
