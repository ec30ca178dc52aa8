//! Files of a client's memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ringpass_memory::{Access, ForeignMemory};
use rustix::io::Errno;

use crate::Refusal;

/// Most files of memory in use at a time.
const MAX_FILES: usize = 64;

/// A file, mapped once and as a whole, however many pieces of it the client maps for the device.
struct File {
    device: u64,
    inode: u64,
    access: Access,
    memory: Arc<ForeignMemory>,
}

/// The files that a client has mapped memory of, each until [`drop_unused`](Self::drop_unused) finds it unused.
#[derive(Default)]
pub(crate) struct Files(Vec<File>);

impl Files {
    /// Returns the memory of a file, at least up to `end`.
    pub(crate) fn map(&mut self, file: OwnedFd, end: u64, access: Access) -> Result<Arc<ForeignMemory>, Refusal> {
        let stat = rustix::fs::fstat(&file).map_err(|errno| Refusal::new(errno, "a descriptor that is not a file"))?;
        if end > stat.st_size as u64 {
            return Err(Refusal::invalid(format!("a map up to {end:#x} of a file of {:#x} bytes", stat.st_size)));
        }
        let same = |known: &&File| (known.device, known.inode, known.access) == (stat.st_dev, stat.st_ino, access);
        if let Some(known) = self.0.iter().find(|known| same(known) && end <= known.memory.len() as u64) {
            return Ok(known.memory.clone());
        }
        if self.0.len() >= MAX_FILES {
            return Err(Refusal::new(Errno::NOSPC, format!("more than {MAX_FILES} files of memory")));
        }
        let mapped: u64 = self.0.iter().map(|file| file.memory.len() as u64).sum();
        if mapped.saturating_add(stat.st_size as u64) > ForeignMemory::MAX_PER_PEER as u64 {
            return Err(Refusal::new(Errno::NOSPC, "files of memory of more than 1 TiB in all"));
        }
        let map = match access {
            Access::Read => ForeignMemory::map_read_only,
            Access::ReadWrite => ForeignMemory::map,
        };
        let memory = map(file.as_fd(), 0, stat.st_size as usize);
        let memory = memory.map_err(|error| Refusal::invalid(error.to_string()))?;
        self.0.push(File { device: stat.st_dev, inode: stat.st_ino, access, memory: memory.clone() });
        Ok(memory)
    }

    /// Unmaps files that the device no longer uses.
    pub(crate) fn drop_unused(&mut self) {
        self.0.retain(|file| Arc::strong_count(&file.memory) > 1);
    }

    /// Returns whether a file was truncated.
    pub(crate) fn lost(&self) -> bool {
        self.0.iter().any(|file| file.memory.lost())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const PAGE: u64 = 4096;

    fn memfd(pages: u64) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, pages * PAGE).unwrap();
        file
    }

    #[test]
    fn a_file_is_mapped_once() {
        let (file, other) = (memfd(8), memfd(8));
        let mut files = Files::default();
        let mut map = |file: &OwnedFd, access| files.map(file.try_clone().unwrap(), 8 * PAGE, access).unwrap();
        let a = map(&file, Access::ReadWrite);
        let b = map(&file, Access::ReadWrite);
        let c = map(&file, Access::Read);
        let d = map(&other, Access::ReadWrite);
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &c) && !Arc::ptr_eq(&a, &d));
        drop((b, c, d));
        files.drop_unused();
        assert_eq!(files.0.len(), 1);
        ftruncate(&file, 9 * PAGE).unwrap();
        files.map(file, 9 * PAGE, Access::ReadWrite).unwrap();
        assert_eq!(files.0.len(), 2, "a file that has grown");
    }
}
