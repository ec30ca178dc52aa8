//! Memory with an address on the device's side.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// What can go wrong with memory: the cause and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value outside its range.
    #[error("{0}")]
    Config(&'static str),
    /// Too few huge pages are free.
    #[error(
        "{need} huge pages of {} KiB are needed, {free} are free; reserve them: echo {} | sudo tee {}",
        size.bytes() >> 10, total + need - free.min(need), size.sysfs("nr_hugepages")
    )]
    HugePages {
        /// Which size.
        size: PageSize,
        /// Pages wanted.
        need: usize,
        /// Pages free.
        free: usize,
        /// Pages that the system has in all.
        total: usize,
    },
    /// `/proc/self/pagemap` hides physical addresses from this user.
    #[error("physical addresses are hidden; run as root (CAP_SYS_ADMIN), or use the card through VFIO")]
    PhysicalHidden,
    /// A real device without an IOMMU needs huge pages: ordinary ones move.
    #[error("a card without an IOMMU needs huge pages, because ordinary pages may move; leave out --hugepages off")]
    PhysicalOnOrdinaryPages,
    /// The kernel refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn os(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Os { what, source: errno.into() }
}

/// The pages under a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PageSize {
    /// 4 KiB, for software on both sides.
    #[default]
    Ordinary,
    /// 2 MiB.
    Huge2M,
    /// 1 GiB.
    Huge1G,
}

impl PageSize {
    /// Bytes of a page.
    pub fn bytes(self) -> usize {
        match self {
            Self::Ordinary => 4 << 10,
            Self::Huge2M => 2 << 20,
            Self::Huge1G => 1 << 30,
        }
    }

    fn sysfs(self, file: &str) -> String {
        format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{file}", self.bytes() >> 10)
    }
}

impl std::fmt::Display for PageSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ordinary => "4 KiB",
            Self::Huge2M => "2 MiB",
            Self::Huge1G => "1 GiB",
        })
    }
}

/// Huge pages of a size that are free and not promised to others, and that the system has in all; zeros where it has
/// none.
pub fn huge_pages_free(size: PageSize) -> (usize, usize) {
    let read = |file| -> usize {
        std::fs::read_to_string(size.sysfs(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    (read("free_hugepages").saturating_sub(read("resv_hugepages")), read("nr_hugepages"))
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
    start: NonNull<u8>,
    len: usize,
    config: RegionConfig,
    /// Physical address of each page; empty with [`Addressing::Virtual`].
    physical: Vec<u64>,
    file: OwnedFd,
}

// SAFETY: the region only hands out raw pointers; who uses them answers for it.
unsafe impl Send for DmaRegion {}
// SAFETY: as above; its own fields are never written after `new`.
unsafe impl Sync for DmaRegion {}

impl DmaRegion {
    /// Maps at least `len` bytes (rounded up to whole pages), present, and on huge pages locked.
    pub fn new(len: usize, config: &RegionConfig) -> Result<Arc<Self>, Error> {
        if config.addressing == Addressing::Physical && config.pages == PageSize::Ordinary {
            return Err(Error::PhysicalOnOrdinaryPages);
        }
        let page = config.pages.bytes();
        let len =
            len.max(1).checked_next_multiple_of(page).ok_or(Error::Config("more memory than there are addresses"))?;
        let flags = match config.pages {
            PageSize::Ordinary => MemfdFlags::empty(),
            PageSize::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            PageSize::Huge1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        };
        let too_few = || {
            let (free, total) = huge_pages_free(config.pages);
            Error::HugePages { size: config.pages, need: len / page, free, total }
        };
        if config.pages != PageSize::Ordinary && huge_pages_free(config.pages).0 < len / page {
            return Err(too_few());
        }
        let (file, start) = map(len, flags).map_err(|errno| match errno {
            // Another process has taken the pages since they were counted.
            Errno::NOMEM if config.pages != PageSize::Ordinary => too_few(),
            _ => os("memory for DMA")(errno),
        })?;
        let start = NonNull::new(start.cast::<u8>()).expect("the kernel maps nothing at address 0");
        // From here on dropping the region undoes all that was done.
        let mut region = Self { start, len, config: *config, physical: Vec::new(), file };
        region.bind_and_populate()?;
        if config.addressing == Addressing::Physical {
            region.physical = region.read_pagemap()?;
        }
        Ok(Arc::new(region))
    }

    fn bind_and_populate(&self) -> Result<(), Error> {
        if let Some(node) = self.config.numa_node.filter(|&n| n < 64 && numa_nodes() > 1) {
            let mask = 1u64 << node;
            // SAFETY: the range is this region's mapping; the mask has 64 bits, as said (the kernel subtracts one).
            let failed = unsafe {
                libc::syscall(libc::SYS_mbind, self.start.as_ptr(), self.len, libc::MPOL_BIND, &mask, 65usize, 0)
            };
            if failed != 0 {
                return Err(Error::Os {
                    what: "binding memory to the card's NUMA node",
                    source: io::Error::last_os_error(),
                });
            }
        }
        // Pages become present here rather than on the packet path. Huge ones are then locked by nature: the kernel
        // neither swaps them nor counts them against `ulimit -l` (it leaves them out of mlock).
        if cfg!(not(miri)) {
            // SAFETY: this region's mapping, whose content stays.
            unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) }
                .map_err(os("making DMA memory present (needs Linux 5.14)"))?;
        }
        Ok(())
    }

    /// The physical address of each page (Linux, admin-guide/mm/pagemap): 8 bytes for each 4 KiB of address space, the
    /// frame number in bits 0 to 54, present in bit 63. Contiguity within a page is checked at its last 4 KiB.
    fn read_pagemap(&self) -> Result<Vec<u64>, Error> {
        const SMALL: usize = 4096;
        let io = |source| Error::Os { what: "/proc/self/pagemap", source };
        let pagemap = File::open("/proc/self/pagemap").map_err(io)?;
        let frame = |offset: usize| -> Result<u64, Error> {
            let mut entry = [0; 8];
            pagemap
                .read_exact_at(&mut entry, ((self.start.as_ptr() as usize + offset) / SMALL * 8) as u64)
                .map_err(io)?;
            match u64::from_le_bytes(entry) & ((1 << 55) - 1) {
                0 => Err(Error::PhysicalHidden),
                frame => Ok(frame * SMALL as u64),
            }
        };
        let page = self.config.pages.bytes();
        (0..self.len)
            .step_by(page)
            .map(|offset| {
                let (first, last) = (frame(offset)?, frame(offset + page - SMALL)?);
                if last.wrapping_sub(first) == (page - SMALL) as u64 {
                    Ok(first)
                } else {
                    Err(Error::Config("a huge page is not contiguous in physical memory"))
                }
            })
            .collect()
    }

    /// Bytes, whole pages.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// How it was made.
    pub fn config(&self) -> &RegionConfig {
        &self.config
    }

    /// The file behind, for processes that are to map the region too.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The address in this process.
    ///
    /// # Panics
    /// If the offset is outside the region.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "offset {offset} in a region of {} bytes", self.len);
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The address on the device's side. Contiguous within a page, and throughout with [`Addressing::Virtual`].
    ///
    /// # Panics
    /// If the offset is outside the region.
    pub fn iova(&self, offset: usize) -> u64 {
        let page = self.config.pages.bytes();
        match self.physical.get(offset / page) {
            Some(physical) => physical + (offset % page) as u64,
            None => self.at(offset) as u64,
        }
    }

    /// The stretches that are contiguous on both sides: `(iova, offset, bytes)`. What a device is told to map.
    pub fn stretches(&self) -> impl Iterator<Item = (u64, usize, usize)> + '_ {
        let page = if self.physical.is_empty() { self.len } else { self.config.pages.bytes() };
        (0..self.len).step_by(page).map(move |offset| (self.iova(offset), offset, page))
    }
}

/// A file in memory, and where it is mapped.
#[cfg(not(miri))]
fn map(len: usize, flags: MemfdFlags) -> Result<(OwnedFd, *mut c_void), Errno> {
    let file = rustix::fs::memfd_create("ringpass-dma", flags | MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &file, 0) }?;
    Ok((file, start))
}

/// Miri knows neither memory files nor shared mappings.
#[cfg(miri)]
fn map(len: usize, _flags: MemfdFlags) -> Result<(OwnedFd, *mut c_void), Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) }?;
    Ok((File::open("/dev/null").map_err(|_| Errno::BADF)?.into(), start))
}

impl Drop for DmaRegion {
    fn drop(&mut self) {
        // SAFETY: this region's own mapping; arrays and pools that point into it hold it by `Arc`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn numa_nodes() -> usize {
    let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    nodes.filter(|e| e.file_name().to_string_lossy().trim_start_matches("node").parse::<u32>().is_ok()).count()
}

/// Types that a device and a driver may access at the same time: made of atomics only, valid for any bits.
///
/// # Safety
/// The type consists of atomic integers without padding.
pub unsafe trait Atomics: Sync {}

// SAFETY: an array of two atomics has no padding.
unsafe impl Atomics for [AtomicU64; 2] {}
// SAFETY: an atomic integer.
unsafe impl Atomics for AtomicU32 {}

/// A slice of atomics in a region, such as a descriptor ring. Keeps the region.
pub struct DmaArray<T: Atomics> {
    items: NonNull<T>,
    len: usize,
    iova: u64,
    region: Arc<DmaRegion>,
}

// SAFETY: `T` is made of atomics, which any thread may use; the region is `Send` and `Sync`.
unsafe impl<T: Atomics> Send for DmaArray<T> {}
// SAFETY: as above.
unsafe impl<T: Atomics> Sync for DmaArray<T> {}

impl<T: Atomics> DmaArray<T> {
    /// `len` items from `offset` of the region, which must be aligned for `T` and, with physical addresses, inside one
    /// page, so that the device sees them contiguous.
    pub fn new(region: &Arc<DmaRegion>, offset: usize, len: usize) -> Result<Self, Error> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&b| b > 0 && b <= region.len - offset.min(region.len));
        let Some(bytes) = bytes.filter(|_| region.at(offset).cast::<T>().is_aligned()) else {
            return Err(Error::Config("an array outside its DMA region, or unaligned"));
        };
        let page = region.config.pages.bytes();
        if !region.physical.is_empty() && offset / page != (offset + bytes - 1) / page {
            return Err(Error::Config("an array across pages that need not be contiguous"));
        }
        let items = NonNull::new(region.at(offset).cast::<T>()).expect("a mapping is not at address 0");
        Ok(Self { items, len, iova: region.iova(offset), region: region.clone() })
    }

    /// Where the device finds the first item.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Keeps the region for ever, because a device may still use it.
    pub fn leak(&self) {
        std::mem::forget(self.region.clone());
    }
}

impl<T: Atomics> std::ops::Deref for DmaArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` checked range and alignment; the region lives as long as `self`; `T` is valid for any bits and
        // may change under a shared reference.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr(), self.len) }
    }
}
