//! The file behind a program's own memory, for `NETMAP_REQ_OPT_EXTMEM`: the serving process maps it, too.
//!
//! Memory of a memfd, of `/dev/shm` or of hugetlbfs has a file. Other memory gets one: its pages are replaced by those of a memfd with
//! the same contents, at the same addresses. Other threads must not write it meanwhile, nor have other processes it in common that
//! were forked before.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::indirect::read_own;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// A file, and where the memory begins in it.
pub struct MemoryFile {
    pub file: OwnedFd,
    pub offset: u64,
}

/// Returns the file of `len` bytes at an address of this program.
///
/// # Errors
/// `EFAULT` for addresses that are not mapped to be read and written, `EINVAL` for those that are not aligned to pages.
///
/// # Safety
/// netmap's interface lets the program give its memory away: nobody has a reference to the bytes as long as this call.
pub unsafe fn file_of(at: u64, len: u64) -> Result<MemoryFile, Errno> {
    if at == 0 {
        return Err(Errno::FAULT);
    }
    if len == 0 || !at.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        return Err(Errno::INVAL);
    }
    let end = at.checked_add(len).ok_or(Errno::FAULT)?;
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| Errno::NOSYS)?;
    let mapped = Mapped::find(&maps, at, end).ok_or(Errno::FAULT)?;
    if let Some(offset) = mapped.offset
        && let Some(file) = mapped.open()
    {
        return Ok(MemoryFile { file, offset });
    }
    // SAFETY: the range is mapped to be read and written, as was just found out, and nobody has a reference into it, by this
    // function's contract.
    unsafe { replace(at, len as usize) }
}

/// A range of addresses as `/proc/self/maps` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mapped {
    /// Where the range begins in a file in memory, if all of it is mapped from one without a gap, and shared.
    offset: Option<u64>,
    /// Device and inode of the file.
    inode: (u64, u64),
    path: String,
    /// Range of addresses of the first mapping.
    first: (u64, u64),
}

impl Mapped {
    /// Finds a range; `None` unless all of it is mapped to be read and written.
    fn find(maps: &str, at: u64, end: u64) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut next = at;
        for line in maps.lines() {
            let mut fields = line.splitn(6, ' ');
            let (from, to) = fields.next()?.split_once('-')?;
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let (from, to) = (hex(from)?, hex(to)?);
            if to <= next || next >= end {
                continue;
            }
            let access = fields.next()?;
            if from > next || !access.starts_with("rw") {
                return None;
            }
            let (pages, device) = (hex(fields.next()?)?, fields.next()?);
            let (major, minor) = device.split_once(':')?;
            let device = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32);
            let (inode, path) = (fields.next()?.parse().ok()?, fields.next().unwrap_or_default().trim());
            let offset = (access.ends_with('s') && inode != 0).then_some(pages + (next - from));
            match &mut found {
                None => found = Some(Self { offset, inode: (device, inode), path: path.into(), first: (from, to) }),
                Some(found) => {
                    let follows =
                        found.inode == (device, inode) && offset == found.offset.map(|first| first + (next - at));
                    found.offset = found.offset.filter(|_| follows);
                }
            }
            next = to;
        }
        found.filter(|_| next >= end)
    }

    /// Opens the file: by the mapping, its path, or a descriptor of this process. `None` if it cannot be, or is not in memory.
    fn open(&self) -> Option<OwnedFd> {
        let (from, to) = self.first;
        let by_mapping = format!("/proc/self/map_files/{from:x}-{to:x}");
        let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let paths =
            [by_mapping.into(), self.path.clone().into()].into_iter().chain(descriptors.map(|entry| entry.path()));
        let matching = paths.filter(|path| {
            std::fs::metadata(path).is_ok_and(|file| file.is_file() && (file.dev(), file.ino()) == self.inode)
        });
        let opened = matching.filter_map(|path| OpenOptions::new().read(true).write(true).open(path).ok());
        opened.map(OwnedFd::from).find(is_in_memory)
    }
}

/// Returns whether a file is one of tmpfs (a memfd, or of `/dev/shm`) or hugetlbfs.
fn is_in_memory(file: &OwnedFd) -> bool {
    let kind = rustix::fs::fstatfs(file.as_fd()).map_or(0, |status| status.f_type);
    [libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&kind)
}

/// Replaces memory by that of a new file with the same contents.
///
/// # Safety
/// The range is mapped to be read and written, and nobody has a reference into it.
unsafe fn replace(at: u64, len: usize) -> Result<MemoryFile, Errno> {
    let file = memfd_create("netmap-extmem", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; it replaces no other.
    let copy = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0) }?;
    let is_copied = NonNull::new(copy.cast()).is_some_and(|to| read_own(at, to, len));
    // SAFETY: the mapping was made above, and is not used any more.
    let _ = unsafe { rustix::mm::munmap(copy, len) };
    if !is_copied {
        return Err(Errno::FAULT);
    }
    // SAFETY: the range is the program's, which gives it away; it is mapped now, and nobody has a reference into it, by this
    // function's contract. Its bytes stay the same.
    unsafe { mmap(at as *mut std::ffi::c_void, len, access, MapFlags::SHARED | MapFlags::FIXED, &file, 0) }?;
    Ok(MemoryFile { file, offset: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-s 00005000 00:01 77 /memfd:x (deleted)
3000-4000 rw-s 00007000 00:01 77 /memfd:x (deleted)
4000-5000 rw-s 00007000 00:01 77 /memfd:x (deleted)
5000-6000 rw-p 00000000 00:00 0
6000-7000 r--p 00000000 00:00 0
8000-9000 rw-p 00000000 00:00 0 [heap]
9000-a000 rw-s 00001000 00:01 78 /dev/shm/a b
";

    #[test]
    fn ranges_are_found_with_their_file() {
        let find = |at, end| Mapped::find(MAPS, at, end).map(|mapped| (mapped.offset, mapped.inode.1));
        assert_eq!(find(0x1000, 0x2000), Some((Some(0x5000), 77)));
        assert_eq!(find(0x2000, 0x4000), Some((Some(0x6000), 77)), "two mappings that follow each other");
        assert_eq!(find(0x2000, 0x5000), Some((None, 77)), "two that do not");
        assert_eq!(find(0x4000, 0x6000), Some((None, 77)), "not all of a file");
        assert_eq!(find(0x5000, 0x6000), Some((None, 0)));
        assert_eq!([find(0x5000, 0x7000), find(0x7000, 0x8000), find(0x6000, 0x9000)], [None; 3]);
        assert_eq!([find(0x8000, 0xb000), find(0xa000, 0xb000), find(0, 0x2000)], [None; 3]);
        assert_eq!(Mapped::find(MAPS, 0x9000, 0xa000).unwrap().path, "/dev/shm/a b");
    }
}
