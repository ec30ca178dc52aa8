//! Memory of another process, by descriptor. That process may take it away while it is used here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;
use crate::error::os;
use crate::sigbus::{Guard, PAGE};

/// A file of another process (or a device's memory), mapped and shared with it. If that process cuts the file short, accesses see zeros from
/// then on instead of ending this process by SIGBUS, and [`lost`](Self::lost) says so.
#[derive(Debug)]
pub struct ForeignMemory {
    /// Dropped before the mapping: until then its addresses are nobody else's.
    guard: Guard,
    mapping: Mapping,
    len: usize,
    /// The file and where in it this begins, if others are to map it too.
    file: Option<(OwnedFd, u64)>,
}

/// What is mapped: whole pages of the file's.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this object's own mapping; pointers into it are used while the object lives only.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: a range of memory that any thread may access, by pointer only.
unsafe impl Send for ForeignMemory {}
// SAFETY: as above.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// Maps `len` bytes from `offset` of a file in memory (a memfd, of /dev/shm, of hugetlbfs), to read and to write.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        Self::new(file, offset, len, ProtFlags::READ | ProtFlags::WRITE).map(Arc::new)
    }

    /// As [`map`](Self::map), with the file kept, for devices that are to map it [too](Self::file).
    pub fn map_shared(file: OwnedFd, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        let mut memory = Self::new(file.as_fd(), offset, len, ProtFlags::READ | ProtFlags::WRITE)?;
        memory.file = Some((file, offset));
        Ok(Arc::new(memory))
    }

    /// As [`map`](Self::map), only to read. A write through [`as_ptr`](Self::as_ptr) ends the process.
    pub fn map_read_only(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        Self::new(file, offset, len, ProtFlags::READ).map(Arc::new)
    }

    /// Maps `len` bytes of a device's memory (a BAR) from `offset` of a file in which the kernel shows it, in whole pages. If the
    /// device goes away or stops answering, accesses see zeros, as in memory of another process.
    pub fn map_device(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        if len == 0 || !(offset | len as u64).is_multiple_of(PAGE) {
            return Err(Error::Config("memory of a device: empty, or not of whole pages"));
        }
        Self::mapped(file, offset, (len, len), ProtFlags::READ | ProtFlags::WRITE).map(Arc::new)
    }

    fn new(file: BorrowedFd<'_>, offset: u64, len: usize, access: ProtFlags) -> Result<Self, Error> {
        // A file on a disk or of FUSE could keep an access waiting as long as its owner likes.
        let kind = rustix::fs::fstatfs(file).map_err(|errno| os("memory of another process")(errno.into()))?.f_type;
        if ![libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&kind) {
            return Err(Error::Config("memory of another process must be a memfd, or a file of /dev/shm or hugetlbfs"));
        }
        let stat = rustix::fs::fstat(file).map_err(|errno| os("memory of another process")(errno.into()))?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error::Config("memory of another process must be a file"));
        }
        let end = offset.checked_add(len as u64);
        if len == 0 || end.is_none_or(|end| end > stat.st_size as u64) {
            return Err(Error::Config("memory of another process: empty, or beyond the end of its file"));
        }
        // Huge pages are mapped, replaced and unmapped as a whole.
        let page = if kind == libc::HUGETLBFS_MAGIC { stat.st_blksize as usize } else { PAGE as usize };
        let mapped = len.checked_next_multiple_of(page).unwrap_or(usize::MAX);
        Self::mapped(file, offset, (len, mapped), access)
    }

    /// Maps `len` bytes, and what follows up to whole pages of the file.
    fn mapped(
        file: BorrowedFd<'_>,
        offset: u64,
        (len, mapped): (usize, usize),
        access: ProtFlags,
    ) -> Result<Self, Error> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(null_mut(), mapped, access, MapFlags::SHARED, file, offset) };
        let start = start.map_err(|errno| os("mapping memory of another process")(errno.into()))?;
        let start = NonNull::new(start.cast()).expect("a mapping is not at address 0");
        let mapping = Mapping { start, len: mapped };
        // SAFETY: the mapping just made, which lives as long as the guard. Others may change it at any time.
        let guard = unsafe { Guard::new(start.as_ptr(), mapped) }?;
        Ok(Self { guard, mapping, len, file: None })
    }

    /// The first byte. What lies there may change at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that are mapped: whole pages of the file's.
    pub fn mapped_len(&self) -> usize {
        self.mapping.len
    }

    /// The file, and where in it this begins; `None` unless it was kept.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.file.as_ref().map(|(file, offset)| (file.as_fd(), *offset))
    }

    /// Whether an access has found the file cut short. What is read since then are zeros, what is written goes nowhere.
    pub fn lost(&self) -> bool {
        self.guard.lost()
    }
}
