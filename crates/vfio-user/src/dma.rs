//! What a client has mapped for the device: which addresses, of which files.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ringpass_memory::ForeignMemory;
use rustix::io::Errno;

use crate::version::MAX_DMA_MAPS;
use crate::{Access, Refusal};

const PAGE: u64 = 4096;
/// Files of memory in use at a time.
const MAX_FILES: usize = 64;

/// A file that is mapped as a whole, once, however many pieces of it the client gives to the device.
struct File {
    device: u64,
    inode: u64,
    access: Access,
    memory: Arc<ForeignMemory>,
}

/// A client's maps. They do not overlap.
#[derive(Default)]
pub(crate) struct DmaMaps {
    /// By first address: length, and the memory, which stays mapped as long.
    maps: BTreeMap<u64, (u64, Arc<ForeignMemory>)>,
    files: Vec<File>,
}

impl DmaMaps {
    /// Checks a map, and finds its memory and where in it the map begins.
    pub(crate) fn map(
        &mut self,
        (iova, size): (u64, u64),
        (file, offset): (OwnedFd, u64),
        access: Access,
    ) -> Result<(Arc<ForeignMemory>, usize), Refusal> {
        let last = check(iova, size)?;
        if self.maps.range(..=last).next_back().is_some_and(|(&start, (len, _))| start + (len - 1) >= iova) {
            return Err(Refusal::new(Errno::EXIST, format!("a map over another: {iova:#x}, {size:#x} bytes")));
        }
        if self.maps.len() >= MAX_DMA_MAPS {
            return Err(Refusal::new(Errno::NOSPC, format!("more than {MAX_DMA_MAPS} maps")));
        }
        let end = offset.checked_add(size).filter(|_| offset.is_multiple_of(PAGE));
        let end = end.ok_or_else(|| Refusal::invalid(format!("a map from offset {offset:#x} of a file")))?;
        let memory = self.file(file, end, access)?;
        self.maps.insert(iova, (size, memory.clone()));
        Ok((memory, offset as usize))
    }

    /// The memory of a file, at least up to `end`.
    fn file(&mut self, file: OwnedFd, end: u64, access: Access) -> Result<Arc<ForeignMemory>, Refusal> {
        let stat = rustix::fs::fstat(&file).map_err(|errno| Refusal::new(errno, "a descriptor that is no file"))?;
        if end > stat.st_size as u64 {
            return Err(Refusal::invalid(format!("a map up to {end:#x} of a file of {:#x} bytes", stat.st_size)));
        }
        let same = |known: &&File| (known.device, known.inode, known.access) == (stat.st_dev, stat.st_ino, access);
        if let Some(known) = self.files.iter().find(|known| same(known) && end <= known.memory.len() as u64) {
            return Ok(known.memory.clone());
        }
        if self.files.len() >= MAX_FILES {
            return Err(Refusal::new(Errno::NOSPC, format!("more than {MAX_FILES} files of memory")));
        }
        let map = match access {
            Access::Read => ForeignMemory::map_read_only,
            Access::ReadWrite => ForeignMemory::map,
        };
        let memory = map(file.as_fd(), 0, stat.st_size as usize);
        let memory = memory.map_err(|error| Refusal::invalid(error.to_string()))?;
        self.files.push(File { device: stat.st_dev, inode: stat.st_ino, access, memory: memory.clone() });
        Ok(memory)
    }

    /// Forgets a range: many maps, a part of one, or none.
    pub(crate) fn unmap(&mut self, iova: u64, size: u64) -> Result<(), Refusal> {
        let last = check(iova, size)?;
        let around = self.maps.range(..iova).next_back().is_some_and(|(&start, (len, _))| start + (len - 1) > last);
        if around && self.maps.len() >= MAX_DMA_MAPS {
            let why = format!("an unmap inside a map, which would make more than {MAX_DMA_MAPS} maps");
            return Err(Refusal::new(Errno::NOSPC, why));
        }
        // A map that crosses an end of the range keeps what is outside.
        self.cut(iova);
        if let Some(next) = last.checked_add(1) {
            self.cut(next);
        }
        let inside: Vec<u64> = self.maps.range(iova..=last).map(|(&start, _)| start).collect();
        inside.iter().for_each(|start| _ = self.maps.remove(start));
        Ok(())
    }

    /// Makes two maps of one that has `at` in its middle.
    fn cut(&mut self, at: u64) {
        let Some((&start, (len, memory))) = self.maps.range_mut((Unbounded, Excluded(at))).next_back() else { return };
        let front = at - start;
        if front < *len {
            let back = (*len - front, memory.clone());
            *len = front;
            self.maps.insert(at, back);
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.maps.clear();
        self.files.clear();
    }

    /// Gives back files that nobody uses any more: neither a map nor the device.
    pub(crate) fn sweep(&mut self) {
        self.files.retain(|file| Arc::strong_count(&file.memory) > 1);
    }

    /// Whether a file was cut short.
    pub(crate) fn lost(&self) -> bool {
        self.files.iter().any(|file| file.memory.lost())
    }
}

/// The last address of a range of whole pages.
fn check(iova: u64, size: u64) -> Result<u64, Refusal> {
    let last = iova.checked_add(size.wrapping_sub(1)).filter(|_| size > 0);
    last.filter(|_| (iova | size).is_multiple_of(PAGE))
        .ok_or_else(|| Refusal::invalid(format!("a map at {iova:#x} of {size:#x} bytes")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn memfd(pages: u64) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, pages * PAGE).unwrap();
        file
    }

    #[test]
    fn a_file_is_mapped_once() {
        let (file, other) = (memfd(8), memfd(8));
        let mut maps = DmaMaps::default();
        let mut map = |file: &OwnedFd, iova, offset, access| {
            maps.map((iova * PAGE, PAGE), (file.try_clone().unwrap(), offset * PAGE), access).unwrap()
        };
        let (a, offset) = map(&file, 0, 3, Access::ReadWrite);
        let (b, _) = map(&file, 1, 7, Access::ReadWrite);
        let (c, _) = map(&file, 2, 7, Access::Read);
        let (d, _) = map(&other, 3, 7, Access::ReadWrite);
        assert_eq!(offset as u64, 3 * PAGE);
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &c) && !Arc::ptr_eq(&a, &d));
        drop((a, b, c, d));
        maps.unmap(2 * PAGE, 2 * PAGE).unwrap();
        maps.sweep();
        assert_eq!(maps.files.len(), 1);
        ftruncate(&file, 9 * PAGE).unwrap();
        maps.map((9 * PAGE, PAGE), (file, 8 * PAGE), Access::ReadWrite).unwrap();
        assert_eq!(maps.files.len(), 2, "a file that has grown");
    }

    #[test]
    fn what_is_refused() {
        let file = memfd(2);
        let mut maps = DmaMaps::default();
        let mut refused = |iova, size, offset| {
            let result = maps.map((iova, size), (file.try_clone().unwrap(), offset), Access::ReadWrite);
            result.map(drop).unwrap_err().errno
        };
        for (iova, size, offset) in [
            (0, 0, 0),
            (0, 1, 0),
            (1, PAGE, 0),
            (0, 3 * PAGE, 0),
            (0, PAGE, 2 * PAGE),
            (0, PAGE, 1),
            (0, PAGE, u64::MAX - PAGE + 1),
            (u64::MAX - PAGE + 1, 2 * PAGE, 0),
        ] {
            assert_eq!(refused(iova, size, offset), Errno::INVAL, "{iova:#x} {size:#x} {offset:#x}");
        }
        let top = u64::MAX - PAGE + 1;
        maps.map((top, PAGE), (file.try_clone().unwrap(), 0), Access::ReadWrite).unwrap();
        let again = maps.map((top, PAGE), (file, 0), Access::ReadWrite);
        assert_eq!(again.unwrap_err().errno, Errno::EXIST);
        maps.unmap(top, PAGE).unwrap();
        assert!(maps.maps.is_empty());
    }

    /// An unmap in the middle of a map makes two of one.
    #[test]
    fn holes_do_not_make_more_maps_than_there_may_be() {
        let file = memfd(3);
        let mut maps = DmaMaps::default();
        let mut map = |iova: u64, pages: u64| {
            let at = (iova * PAGE, pages * PAGE);
            maps.map(at, (file.try_clone().unwrap(), 0), Access::ReadWrite).map(drop)
        };
        (0..MAX_DMA_MAPS as u64).for_each(|i| map(3 * i, 3).unwrap());
        assert_eq!(map(u64::MAX / PAGE, 1).unwrap_err().errno, Errno::NOSPC);
        for i in 0..100 {
            assert_eq!(maps.unmap((3 * i + 1) * PAGE, PAGE).unwrap_err().errno, Errno::NOSPC);
            assert_eq!(maps.maps.len(), MAX_DMA_MAPS);
        }
        // What makes none more is carried out, and makes room.
        maps.unmap(PAGE, 3 * PAGE).unwrap();
        assert_eq!(maps.maps.len(), MAX_DMA_MAPS);
        maps.unmap(0, 6 * PAGE).unwrap();
        assert_eq!(maps.maps.len(), MAX_DMA_MAPS - 2);
        maps.unmap(7 * PAGE, PAGE).unwrap();
        assert_eq!(maps.maps.len(), MAX_DMA_MAPS - 1);
    }

    proptest! {
        /// Against a plain array of pages: which are mapped.
        #[test]
        fn maps_come_and_go(operations in prop::collection::vec((any::<bool>(), 0u64..64, 1u64..24), 1..60)) {
            let file = memfd(64);
            let mut maps = DmaMaps::default();
            let mut pages = [false; 96];
            for (is_map, page, count) in operations {
                let range = page as usize..(page + count) as usize;
                if is_map {
                    let at = (page * PAGE, count * PAGE);
                    let result = maps.map(at, (file.try_clone().unwrap(), 0), Access::ReadWrite);
                    prop_assert_eq!(result.is_ok(), !pages[range.clone()].contains(&true));
                    if result.is_ok() {
                        pages[range].fill(true);
                    }
                } else {
                    maps.unmap(page * PAGE, count * PAGE).unwrap();
                    pages[range].fill(false);
                }
                let mut seen = [false; 96];
                for (&start, (len, _)) in &maps.maps {
                    let range = (start / PAGE) as usize..((start + len) / PAGE) as usize;
                    prop_assert!(!seen[range.clone()].contains(&true) && !range.is_empty());
                    seen[range].fill(true);
                }
                prop_assert_eq!(seen, pages);
            }
        }
    }
}
