//! The guest's memory as the front-end shares it: a table of file regions.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringpass_memory::ForeignMemory;
use ringpass_virtio::device::{GuestMemory, GuestRegion};

use crate::message::refuse;
use crate::{Refusal, Region};

/// Largest number of regions in a guest's memory.
pub const MAX_REGIONS: usize = 64;

/// A region and its mapping.
#[derive(Clone)]
struct MappedRegion {
    region: Region,
    /// Device and inode number of the file.
    device: u64,
    inode: u64,
    memory: Arc<ForeignMemory>,
    /// Offset of the region in the mapping, in bytes.
    map_offset: u64,
}

/// A memory table. It never changes: a change makes a new table, and regions in both keep their mapping.
#[derive(Clone, Default)]
pub(crate) struct MemoryTable {
    regions: Vec<MappedRegion>,
    memory: Arc<GuestMemory>,
}

/// Checks that regions are not so large together that no addresses would be left for others.
fn check_sum<'a>(mut regions: impl Iterator<Item = &'a Region>) -> Result<(), Refusal> {
    let sum = regions.try_fold(0_u64, |sum, region| sum.checked_add(region.size));
    if sum.is_none_or(|sum| sum > ForeignMemory::MAX_PER_PEER as u64) {
        return refuse("memory regions of more than 1 TiB in all");
    }
    Ok(())
}

impl MemoryTable {
    /// Returns the memory as rings access it.
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns a table of these regions, each with its file ("SET_MEM_TABLE").
    pub(crate) fn replaced(&self, regions: &[Region], files: Vec<OwnedFd>) -> Result<Self, Refusal> {
        check_sum(regions.iter())?;
        let mapped = regions.iter().zip(files).map(|(&region, file)| self.map(region, file));
        Self::of(mapped.collect::<Result<_, _>>()?)
    }

    /// Returns the table with one more region ("ADD_MEM_REG"). A region that is already there is ignored,
    /// because QEMU 7.2 sends each region once per queue pair.
    pub(crate) fn with(&self, region: Region, file: OwnedFd) -> Result<Self, Refusal> {
        let others = self.regions.iter().map(|known| &known.region).filter(|&known| *known != region);
        check_sum(others.chain([&region]))?;
        let added = self.map(region, file)?;
        let same = |known: &MappedRegion| known.region == region && Arc::ptr_eq(&known.memory, &added.memory);
        if self.regions.iter().any(same) {
            return Ok(self.clone());
        }
        if self.regions.len() >= MAX_REGIONS {
            return refuse(format!("more than {MAX_REGIONS} memory regions"));
        }
        Self::of(self.regions.iter().cloned().chain([added]).collect())
    }

    /// Returns the table without the region that has these addresses and this size ("REM_MEM_REG"). A missing
    /// region is not an error, because QEMU 7.2 sends each removal once per queue pair.
    pub(crate) fn without(&self, region: &Region) -> Result<Self, Refusal> {
        let name = |region: &Region| (region.guest, region.user, region.size);
        let others = self.regions.iter().filter(|known| name(&known.region) != name(region));
        Self::of(others.cloned().collect())
    }

    /// Maps a region, or reuses the existing mapping of the same range of the same file.
    fn map(&self, region: Region, file: OwnedFd) -> Result<MappedRegion, Refusal> {
        let Ok(stat) = rustix::fs::fstat(&file) else { return refuse("a descriptor that is not a file") };
        let device = stat.st_dev;
        let inode = stat.st_ino;
        let len = stat.st_size as u64;
        let Region { offset, size, .. } = region;
        if offset.checked_add(size).is_none_or(|end| end > len) {
            return refuse(format!("a memory region of {size:#x} bytes from {offset:#x} of a file that has {len:#x}"));
        }
        let same = |known: &&MappedRegion| {
            (known.device, known.inode) == (device, inode) && (known.region.offset, known.region.size) == (offset, size)
        };
        if let Some(known) = self.regions.iter().find(same) {
            return Ok(MappedRegion { region, ..known.clone() });
        }
        // Files of huge pages can only be mapped from a page boundary, and regions need not begin on one: those
        // of a PC's first megabyte do not.
        let map_offset = offset % stat.st_blksize.max(4096) as u64;
        // The file has at least this many bytes, so the number fits a `usize`.
        match ForeignMemory::map_shared(file, offset - map_offset, (map_offset + size) as usize) {
            Ok(memory) => Ok(MappedRegion { region, device, inode, memory, map_offset }),
            Err(error) => refuse(format!("a memory region of {size:#x} bytes: {error}")),
        }
    }

    fn of(regions: Vec<MappedRegion>) -> Result<Self, Refusal> {
        let guest = |MappedRegion { region, memory, map_offset, .. }: &MappedRegion| GuestRegion {
            guest: region.guest,
            user: region.user,
            len: region.size,
            memory: memory.clone(),
            offset: *map_offset,
        };
        let memory =
            GuestMemory::new(regions.iter().map(guest).collect()).map_err(|error| Refusal(error.to_string()))?;
        // `GuestMemory::new` has checked that no region is empty or wraps around.
        let ends = |MappedRegion { region, .. }: &MappedRegion| (region.user, region.user + region.size);
        let mut users: Vec<(u64, u64)> = regions.iter().map(ends).collect();
        users.sort_unstable();
        if users.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return refuse("memory regions that overlap in the front-end's addresses");
        }
        Ok(Self { regions, memory })
    }
}
