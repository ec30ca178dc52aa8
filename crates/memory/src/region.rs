//! Memory with an address on the device's side.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

#[cfg(not(miri))]
use memmap2::MmapOptions;
use memmap2::{Advice, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::os;
#[cfg(miri)]
use crate::miri::map;
use crate::sigbus::Guard;
use crate::{Error, physical};

/// The pages under a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PageSize {
    /// 4 KiB, for software on both sides.
    #[default]
    Ordinary = 4 << 10,
    /// 2 MiB.
    Huge2M = 2 << 20,
    /// 1 GiB.
    Huge1G = 1 << 30,
}

impl PageSize {
    /// Bytes of a page.
    pub fn bytes(self) -> usize {
        self as usize
    }
}

/// What a device uses as address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Addressing {
    /// The address in this process. For models and behind an IOMMU, which is told the same.
    #[default]
    Virtual,
    /// The physical address, from `/proc/self/pagemap`. For real cards without an IOMMU; needs huge pages and root.
    Physical,
}

/// How a [`DmaRegion`] is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionConfig {
    /// Pages to use.
    pub pages: PageSize,
    /// Addresses on the device's side.
    pub addressing: Addressing,
    /// Node that the memory should come from, where there are several.
    pub numa_node: Option<u32>,
}

/// Zeroed memory that devices may be given. Shared (a memfd), so that a device in another process can map it too;
/// it has no name in any file system, so that nothing is left behind.
#[derive(Debug)]
pub struct DmaRegion {
    /// Dropped before the memory. Whoever has the file may take pages away.
    _guard: Guard,
    memory: MmapRaw,
    config: RegionConfig,
    /// Physical address of each page; empty with [`Addressing::Virtual`].
    physical: Vec<u64>,
    file: OwnedFd,
}

impl DmaRegion {
    /// Maps at least `len` bytes (rounded up to whole pages), present, and on huge pages locked.
    pub fn new(len: usize, config: &RegionConfig) -> Result<Arc<Self>, Error> {
        let RegionConfig { pages, addressing, .. } = *config;
        if addressing == Addressing::Physical && pages == PageSize::Ordinary {
            return Err(Error::PhysicalOnOrdinaryPages);
        }
        let whole = len.max(1).checked_next_multiple_of(pages.bytes());
        let len = whole.ok_or(Error::Config("more memory than there are addresses"))?;
        let flags = match pages {
            PageSize::Ordinary => MemfdFlags::CLOEXEC,
            PageSize::Huge2M => MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            PageSize::Huge1G => MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        };
        let (file, memory) = map(len, flags).map_err(|error| pages.refused(len, error))?;
        // SAFETY: the mapping just made, which `memory` keeps. Its bytes are reached by raw pointers and atomics only.
        let guard = unsafe { Guard::new(memory.as_mut_ptr(), len) }?;
        let mut region = Self { _guard: guard, memory, config: *config, physical: Vec::new(), file };
        physical::bind(&region)?;
        // Pages become present here rather than on the packet path. Huge ones are then locked by nature: the kernel
        // neither swaps them nor counts them against `ulimit -l` (it leaves them out of mlock).
        if cfg!(not(miri)) {
            let present = region.memory.advise(Advice::PopulateWrite);
            present.map_err(os("making DMA memory present (needs Linux 5.14)"))?;
        }
        if addressing == Addressing::Physical {
            region.physical = physical::addresses(&region)?;
        }
        Ok(Arc::new(region))
    }

    /// Bytes, whole pages.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// How it was made.
    pub fn config(&self) -> &RegionConfig {
        &self.config
    }

    /// The file behind, for processes that are to map the region too. An error with [`Addressing::Physical`]: whoever has
    /// the file can give its pages back to the kernel, while a card without an IOMMU still writes to their addresses.
    pub fn file(&self) -> Result<BorrowedFd<'_>, Error> {
        let shared = self.config.addressing == Addressing::Virtual;
        shared.then_some(self.file.as_fd()).ok_or(Error::PhysicalShared)
    }

    /// The address in this process.
    ///
    /// # Panics
    /// If the offset is outside the region.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len(), "offset {offset} in a region of {} bytes", self.len());
        self.memory.as_mut_ptr().wrapping_add(offset)
    }

    /// The address on the device's side.
    ///
    /// # Panics
    /// If the offset is outside the region.
    pub fn iova(&self, offset: usize) -> u64 {
        let page = self.page();
        match self.physical.get(offset / page) {
            Some(physical) => physical + (offset % page) as u64,
            None => self.at(offset) as u64,
        }
    }

    /// Bytes that a device sees contiguous: the whole region with [`Addressing::Virtual`], else a page.
    pub(crate) fn page(&self) -> usize {
        if self.physical.is_empty() { self.len() } else { self.config.pages.bytes() }
    }

    /// The stretches that are contiguous on both sides: `(iova, offset, bytes)`. What a device is told to map.
    pub fn stretches(&self) -> impl Iterator<Item = (u64, usize, usize)> + '_ {
        (0..self.len()).step_by(self.page()).map(|offset| (self.iova(offset), offset, self.page()))
    }
}

/// A file in memory that stays as long as it is, and the whole of it mapped.
#[cfg(not(miri))]
fn map(len: usize, flags: MemfdFlags) -> io::Result<(OwnedFd, MmapRaw)> {
    let file = rustix::fs::memfd_create("ringpass-dma", flags | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    // Another process that has the file must not take the memory away.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let memory = MmapOptions::new().len(len).map_raw(&file)?;
    Ok((file, memory))
}
