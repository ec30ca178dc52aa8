//! Memory of another process, mapped from a descriptor. That process may take it away while it is in use here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringpass_ipc::{LARGE_MEMORY, drop_elsewhere};
use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;
use crate::error::os;
use crate::sigbus::{Guard, PAGE};

/// A file of another process, or a device's memory, mapped and shared with it.
///
/// If the other process truncates the file, accesses read zeros from then on, instead of ending this process by
/// SIGBUS, and [`lost`](Self::lost) returns `true`.
#[derive(Debug)]
pub struct ForeignMemory {
    /// Dropped before the mapping, whose addresses may be reused as soon as it is unmapped.
    guard: Guard,
    mapping: Mapping,
    len: usize,
}

/// A mapping of whole pages of the file.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
    reserved: Reserved,
    /// Set if another process keeps the file, so that unmapping frees nothing.
    kept: bool,
    /// The file and the offset of this memory in it, if others are to map it too.
    file: Option<(OwnedFd, u64)>,
}

/// Bytes of addresses that all mappings of this kind take up: a process has 128 TiB, which other mappings need too.
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Addresses for a mapping, returned when dropped.
#[derive(Debug)]
struct Reserved(usize);

impl Reserved {
    fn new(len: usize) -> Result<Self, Error> {
        let add =
            |reserved: usize| reserved.checked_add(len).filter(|&reserved| reserved <= ForeignMemory::MAX_PER_PROCESS);
        match RESERVED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Self(len)),
            Err(_) => Err(Error::Config("memory of other processes: more than 64 TiB would be mapped")),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        RESERVED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl Drop for Mapping {
    /// Unmaps. This may be the last that holds the file, whose memory is freed then, which takes long if there is much.
    fn drop(&mut self) {
        let unmapped = Unmapped {
            start: self.start.as_ptr() as usize,
            len: self.len,
            _reserved: std::mem::replace(&mut self.reserved, Reserved(0)),
            _file: self.file.take(),
        };
        if self.len >= LARGE_MEMORY && !self.kept {
            drop_elsewhere(unmapped);
        }
    }
}

/// A mapping that nobody uses any more, until it is unmapped. Its file is closed afterwards.
struct Unmapped {
    start: usize,
    len: usize,
    _reserved: Reserved,
    _file: Option<(OwnedFd, u64)>,
}

impl Drop for Unmapped {
    fn drop(&mut self) {
        // SAFETY: `Mapping` made the mapping, owned it and was dropped. Pointers into it were used only while it lived.
        let _ = unsafe { rustix::mm::munmap(self.start as *mut std::ffi::c_void, self.len) };
    }
}

// SAFETY: a range of memory that may be accessed and unmapped from any thread; it is accessed by raw pointers only.
unsafe impl Send for ForeignMemory {}
// SAFETY: methods on a shared reference return pointers and lengths that never change, and read an atomic flag.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// Most bytes that should be mapped for one peer, for callers to check: 1 TiB.
    pub const MAX_PER_PEER: usize = 1 << 40;

    /// Most bytes that this process maps in all: 64 TiB, half of its addresses.
    pub const MAX_PER_PROCESS: usize = 64 << 40;

    /// Maps `len` bytes from `offset` of a file in memory (a memfd, or a file of /dev/shm or hugetlbfs), for
    /// reading and writing.
    ///
    /// # Errors
    /// The file is of another kind or too short, [too much](Self::MAX_PER_PROCESS) is mapped already, or the kernel
    /// refuses.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        Self::new(file, offset, len, ProtFlags::READ | ProtFlags::WRITE).map(Arc::new)
    }

    /// Like [`map`](Self::map), for a file that another process keeps: unmapping it frees nothing, so it is not done
    /// on another thread, however large it is.
    pub fn map_kept(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        let mut memory = Self::new(file, offset, len, ProtFlags::READ | ProtFlags::WRITE)?;
        memory.mapping.kept = true;
        Ok(Arc::new(memory))
    }

    /// Like [`map`](Self::map), but keeps the [file](Self::file), for devices that are to map it too.
    pub fn map_shared(file: OwnedFd, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        let mut memory = Self::new(file.as_fd(), offset, len, ProtFlags::READ | ProtFlags::WRITE)?;
        memory.mapping.file = Some((file, offset));
        Ok(Arc::new(memory))
    }

    /// Like [`map`](Self::map), but for reading only. A write through [`as_ptr`](Self::as_ptr) ends the process.
    pub fn map_read_only(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        Self::new(file, offset, len, ProtFlags::READ).map(Arc::new)
    }

    /// Maps `len` bytes of a device's memory (a BAR) from `offset` of the kernel's file for it. Both must be
    /// multiples of 4 KiB.
    ///
    /// If the device is removed or stops answering, accesses read zeros, as for memory of another process.
    pub fn map_device(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        if len == 0 || !(offset | len as u64).is_multiple_of(PAGE) {
            return Err(Error::Config("memory of a device: empty, or not of whole pages"));
        }
        Self::mapped(file, offset, (len, len), ProtFlags::READ | ProtFlags::WRITE).map(Arc::new)
    }

    fn new(file: BorrowedFd<'_>, offset: u64, len: usize, access: ProtFlags) -> Result<Self, Error> {
        // A file on a disk, or of FUSE, could block an access for as long as its owner likes.
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
        // Huge pages can only be mapped, replaced and unmapped as a whole.
        let page = if kind == libc::HUGETLBFS_MAGIC { stat.st_blksize as usize } else { PAGE as usize };
        let mapped = len.checked_next_multiple_of(page).unwrap_or(usize::MAX);
        Self::mapped(file, offset, (len, mapped), access)
    }

    /// Maps `mapped` bytes, whole pages of the file, of which the first `len` are used.
    fn mapped(
        file: BorrowedFd<'_>,
        offset: u64,
        (len, mapped): (usize, usize),
        access: ProtFlags,
    ) -> Result<Self, Error> {
        let reserved = Reserved::new(mapped)?;
        // SAFETY: a new mapping at an address that the kernel chooses; it replaces no other.
        let start = unsafe { rustix::mm::mmap(null_mut(), mapped, access, MapFlags::SHARED, file, offset) };
        let start = start.map_err(|errno| os("mapping memory of another process")(errno.into()))?;
        let start = NonNull::new(start.cast()).expect("a mapping is not at address 0");
        let mapping = Mapping { start, len: mapped, reserved, kept: false, file: None };
        // SAFETY: `start` has just been mapped with `mapped` bytes, and `Self` drops the guard before the
        // mapping. Others may change the memory at any time, so it is accessed by raw pointers and atomics only.
        let guard = unsafe { Guard::new(start.as_ptr(), mapped) }?;
        Ok(Self { guard, mapping, len })
    }

    /// Returns a pointer to the first byte. The content may change at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// Length in bytes, as requested.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Length of the mapping in bytes: whole pages of the file.
    pub fn mapped_len(&self) -> usize {
        self.mapping.len
    }

    /// Returns the file and the offset of this memory in it, or `None` if the file was not kept.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.mapping.file.as_ref().map(|(file, offset)| (file.as_fd(), *offset))
    }

    /// Whether an access found the file truncated. Since then reads return zeros, and writes have no effect on
    /// the file.
    pub fn lost(&self) -> bool {
        self.guard.lost()
    }
}
