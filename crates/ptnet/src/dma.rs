//! The guest's memory, by the addresses that the device uses.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringpass_memory::ForeignMemory;
use ringpass_netmap::Memory;
use ringpass_vfio_user::Access;

/// What was mapped at an address.
#[derive(Clone)]
struct Map {
    len: u64,
    memory: Memory,
    /// Where in the memory it begins.
    offset: usize,
    access: Access,
}

/// Maps by their first address. They do not overlap.
#[derive(Default)]
pub(crate) struct Dma(BTreeMap<u64, Map>);

impl Dma {
    pub(crate) fn map(&mut self, iova: u64, memory: &Arc<ForeignMemory>, offset: usize, len: usize, access: Access) {
        self.0.insert(iova, Map { len: len as u64, memory: memory.clone().into(), offset, access });
    }

    /// Takes all away that lies in a span, which does not go beyond the last address.
    pub(crate) fn unmap(&mut self, iova: u64, len: u64) {
        self.cut(iova);
        let end = iova.checked_add(len);
        end.into_iter().for_each(|end| self.cut(end));
        let mut behind = self.0.split_off(&iova);
        self.0.append(&mut end.map_or_else(BTreeMap::new, |end| behind.split_off(&end)));
    }

    /// Makes two maps of one that has `at` in its middle.
    fn cut(&mut self, at: u64) {
        let Some((&start, map)) = self.0.range_mut(..at).next_back() else { return };
        let front = at - start;
        if front < map.len {
            let back = Map { len: map.len - front, offset: map.offset + front as usize, ..map.clone() };
            map.len = front;
            self.0.insert(at, back);
        }
    }

    /// Where `len` bytes lie, if they are in one map that may be written.
    pub(crate) fn find(&self, iova: u64, len: usize) -> Option<(&Memory, usize)> {
        let (&start, map) = self.0.range(..=iova).next_back()?;
        let skip = iova - start;
        let inside = skip.checked_add(len as u64).is_some_and(|end| end <= map.len);
        (inside && map.access == Access::ReadWrite).then(|| (&map.memory, map.offset + skip as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const PAGE: u64 = 4096;

    fn memory(pages: u64) -> Arc<ForeignMemory> {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, pages * PAGE).unwrap();
        ForeignMemory::map(file.as_fd(), 0, (pages * PAGE) as usize).unwrap()
    }

    proptest! {
        /// Against a plain array of pages: where in the file each of them lies.
        #[test]
        fn maps_come_and_go(operations in prop::collection::vec((any::<bool>(), 0u64..32, 1u64..12, any::<bool>()), 1..40)) {
            let memory = memory(64);
            let mut dma = Dma::default();
            let mut pages = [None; 48];
            for (map, page, count, write) in operations {
                let range = page as usize..(page + count) as usize;
                if map && pages[range.clone()].iter().all(Option::is_none) {
                    let access = if write { Access::ReadWrite } else { Access::Read };
                    dma.map(page * PAGE, &memory, (page * PAGE) as usize, (count * PAGE) as usize, access);
                    range.for_each(|at| pages[at] = Some((at as u64 * PAGE, write)));
                } else if !map {
                    dma.unmap(page * PAGE, count * PAGE);
                    pages[range].fill(None);
                }
                for (at, page) in (0u64..).zip(pages) {
                    let found = dma.find(at * PAGE + 64, 128).map(|(_, offset)| offset as u64);
                    prop_assert_eq!(found, page.filter(|page| page.1).map(|page| page.0 + 64));
                }
            }
        }
    }

    #[test]
    fn ends_of_maps_and_of_all_addresses() {
        let memory = memory(2);
        let mut dma = Dma::default();
        dma.map(PAGE, &memory, 0, 2 * PAGE as usize, Access::ReadWrite);
        let found = |dma: &Dma, iova, len| dma.find(iova, len).map(|(_, offset)| offset);
        assert_eq!((found(&dma, 3 * PAGE - 64, 64), found(&dma, 3 * PAGE - 64, 65)), (Some(2 * 4096 - 64), None));
        assert_eq!((found(&dma, PAGE - 1, 64), found(&dma, u64::MAX, 64)), (None, None));
        dma.unmap(0, 1 << 63);
        assert_eq!(found(&dma, PAGE, 64), None);
        let top = u64::MAX - PAGE + 1;
        dma.map(top, &memory, 0, PAGE as usize, Access::ReadWrite);
        assert_eq!(found(&dma, top, 64), Some(0));
        dma.unmap(1 << 63, 1 << 63);
        assert_eq!(found(&dma, top, 64), None);
    }
}
