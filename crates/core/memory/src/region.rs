//! DMA regions: memory with an address on the device's side.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

#[cfg(not(miri))]
use memmap2::MmapOptions;
use memmap2::{Advice, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::{os, refused};
#[cfg(miri)]
use crate::miri::map;
use crate::sigbus::Guard;
use crate::{Error, PageSize, physical};

/// Kind of address that a device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Addressing {
    /// The virtual address in this process. For models, and behind an IOMMU, which is given the same mapping.
    #[default]
    Virtual,
    /// The physical address, from `/proc/self/pagemap`. For real cards without an IOMMU; needs huge pages and
    /// root.
    Physical,
}

/// Configuration of a [`DmaRegion`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionConfig {
    /// Page size.
    pub pages: PageSize,
    /// Kind of address on the device's side.
    pub addressing: Addressing,
    /// NUMA node to allocate from, on machines with several.
    pub numa_node: Option<u32>,
}

/// A range of a region that is contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContiguousRange {
    /// Its address for the device.
    pub iova: u64,
    /// Its offset in the region.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// Zeroed memory for DMA.
///
/// It is shared memory (a memfd), so a device in another process can map it too. It has no name in any file
/// system, so nothing is left behind when the process ends.
#[derive(Debug)]
pub struct DmaRegion {
    /// Dropped before the memory. Needed because anyone who holds the file may take pages away.
    _guard: Guard,
    memory: MmapRaw,
    config: RegionConfig,
    /// Physical address of each page; empty with [`Addressing::Virtual`].
    physical: Vec<u64>,
    file: OwnedFd,
}

impl DmaRegion {
    /// Maps at least `len` bytes, rounded up to whole pages. All pages are present on return; huge pages are
    /// also locked.
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
        let (file, memory) = map(len, flags).map_err(|error| refused(pages, len, error))?;
        Self::mapped(file, memory, config)
    }

    /// Maps the memory of a region that another process of this program has made and passed on: the whole [file](Self::file), which
    /// must be sealed against changes of its size. Its bytes are as they were left.
    ///
    /// # Errors
    /// The file is another one, or cannot be mapped.
    #[cfg(not(miri))]
    pub fn of_file(file: OwnedFd) -> Result<Arc<Self>, Error> {
        let failed = os("mapping memory that was passed on");
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        let len =
            rustix::fs::fstat(&file).map(|stat| stat.st_size as usize).map_err(|errno| os("its size")(errno.into()))?;
        if !sealed || len == 0 || !len.is_multiple_of(PageSize::Ordinary.bytes()) {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let memory = MmapOptions::new().len(len).map_raw(&file).map_err(failed)?;
        Self::mapped(file, memory, &RegionConfig::default())
    }

    fn mapped(file: OwnedFd, memory: MmapRaw, config: &RegionConfig) -> Result<Arc<Self>, Error> {
        let RegionConfig { pages, addressing, .. } = *config;
        // SAFETY: `memory` has just been mapped with this length, and `Self` drops the guard before it. Its
        // bytes are accessed by raw pointers and atomics only.
        let guard = unsafe { Guard::new(memory.as_mut_ptr(), memory.len()) }?;
        config.numa_node.map_or(Ok(()), |node| physical::bind(&memory, node))?;
        // Pages are faulted in here rather than on the packet path. Huge pages are then locked implicitly: the
        // kernel neither swaps them nor counts them against `ulimit -l` (mlock leaves them out).
        if cfg!(not(miri)) {
            let present = memory.advise(Advice::PopulateWrite);
            present.map_err(os("making DMA memory present (needs Linux 5.14)"))?;
        }
        let physical = match addressing {
            Addressing::Virtual => Vec::new(),
            Addressing::Physical => physical::addresses(&memory, pages.bytes())?,
        };
        Ok(Arc::new(Self { _guard: guard, memory, config: *config, physical, file }))
    }

    /// Length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the configuration that it was made with.
    pub fn config(&self) -> &RegionConfig {
        &self.config
    }

    /// Returns the file behind the region, for processes that are to map it too.
    ///
    /// # Errors
    /// With [`Addressing::Physical`]: anyone who holds the file can give its pages back to the kernel, while a
    /// card without an IOMMU still writes to their addresses.
    pub fn file(&self) -> Result<BorrowedFd<'_>, Error> {
        let shared = self.config.addressing == Addressing::Virtual;
        shared.then_some(self.file.as_fd()).ok_or(Error::PhysicalShared)
    }

    /// Returns the address in this process of the byte at `offset`.
    ///
    /// # Panics
    /// If the offset is outside the region.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len(), "offset {offset} in a region of {} bytes", self.len());
        self.memory.as_mut_ptr().wrapping_add(offset)
    }

    /// Returns the address on the device's side of the byte at `offset`.
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

    /// Length of the pieces that a device sees as contiguous: the whole region with [`Addressing::Virtual`],
    /// else a page.
    pub(crate) fn page(&self) -> usize {
        if self.physical.is_empty() { self.len() } else { self.config.pages.bytes() }
    }

    /// Returns the ranges that are contiguous on both sides, which are what a device must map.
    pub fn contiguous_ranges(&self) -> impl Iterator<Item = ContiguousRange> + '_ {
        let range = |offset| ContiguousRange { iova: self.iova(offset), offset, len: self.page() };
        (0..self.len()).step_by(self.page()).map(range)
    }
}

/// Seals of a region's file, whose size nobody can change.
#[cfg(not(miri))]
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates a memfd of `len` bytes, sealed against changes of its size, and maps all of it.
#[cfg(not(miri))]
fn map(len: usize, flags: MemfdFlags) -> io::Result<(OwnedFd, MmapRaw)> {
    let file = rustix::fs::memfd_create("ringpass-dma", flags | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    // Another process that holds the file must not shrink it.
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    let memory = MmapOptions::new().len(len).map_raw(&file)?;
    Ok((file, memory))
}
