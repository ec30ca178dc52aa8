//! Tests of regions on ordinary pages, and of arrays in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ringpass_memory::{Addressing, ContiguousRange, DmaArray, DmaRegion, Error, PageSize, RegionConfig};

const PAGE: usize = 4096;

fn region(len: usize) -> Arc<DmaRegion> {
    DmaRegion::new(len, &RegionConfig::default()).unwrap()
}

#[test]
fn whole_pages_zeroed_and_contiguous() {
    for (len, pages) in [(0, 1), (1, 1), (PAGE, 1), (PAGE + 1, 2), (10 * PAGE, 10)] {
        let region = region(len);
        assert_eq!(region.len(), pages * PAGE);
        for offset in (0..region.len()).step_by(64).chain([region.len() - 1]) {
            assert_eq!(region.iova(offset), region.iova(0) + offset as u64);
            assert_eq!(region.at(offset) as u64, region.iova(offset));
            // SAFETY: the address is inside the region, which only this test uses.
            assert_eq!(unsafe { region.at(offset).read() }, 0);
        }
        assert_eq!(
            region.contiguous_ranges().collect::<Vec<_>>(),
            [ContiguousRange { iova: region.iova(0), offset: 0, len: region.len() }]
        );
    }
}

#[test]
fn offsets_outside_panic() {
    let region = region(PAGE);
    for offset in [PAGE, PAGE + 1, usize::MAX] {
        assert!(std::panic::catch_unwind(|| region.at(offset) as usize).is_err());
        assert!(std::panic::catch_unwind(|| region.iova(offset)).is_err());
    }
}

#[test]
fn impossible_regions_are_refused() {
    assert!(matches!(DmaRegion::new(usize::MAX, &RegionConfig::default()), Err(Error::Config(_))));
    let physical = RegionConfig { addressing: Addressing::Physical, ..RegionConfig::default() };
    let refused = DmaRegion::new(PAGE, &physical).unwrap_err();
    assert!(matches!(refused, Error::PhysicalOnOrdinaryPages));
    assert!(refused.to_string().contains("leave out --hugepages off"), "{refused}");
    assert_eq!(RegionConfig::default().pages, PageSize::Ordinary);
}

#[test]
#[cfg(not(miri))] // Miri reports the kernel's refusal as an error of its own.
fn more_than_there_is_is_refused_in_one_line() {
    let refused = DmaRegion::new(1 << 60, &RegionConfig::default()).unwrap_err().to_string();
    assert!(refused.starts_with("memory for DMA: ") && refused.lines().count() == 1, "{refused}");
}

#[test]
#[cfg(not(miri))] // Miri has no shared mappings.
fn the_file_is_the_memory() {
    use std::os::unix::fs::FileExt;
    let region = region(2 * PAGE);
    let file = std::fs::File::from(region.file().unwrap().try_clone_to_owned().unwrap());
    assert_eq!(file.metadata().unwrap().len(), 2 * PAGE as u64);
    file.write_all_at(b"peer", PAGE as u64 + 5).unwrap();
    // SAFETY: the bytes are inside the region, and nobody writes them now.
    assert_eq!(unsafe { std::slice::from_raw_parts(region.at(PAGE + 5), 4) }, b"peer");
}

#[test]
#[cfg(not(miri))] // Miri has no shared mappings.
fn punched_holes_read_as_zeros() {
    use rustix::fs::{FallocateFlags, fallocate};
    let region = region(2 * PAGE);
    // SAFETY: the address is inside the region.
    let word = |offset| unsafe { AtomicU32::from_ptr(region.at(offset).cast()) };
    word(0).store(1, Ordering::Relaxed);
    word(PAGE).store(2, Ordering::Relaxed);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(region.file().unwrap(), hole, 0, PAGE as u64).unwrap();
    assert_eq!((word(0).load(Ordering::Relaxed), word(PAGE).load(Ordering::Relaxed)), (0, 2));
    word(0).store(3, Ordering::Relaxed);
    assert_eq!(word(0).load(Ordering::Relaxed), 3);
}

#[test]
fn arrays_lie_where_they_are_told_and_keep_their_region() {
    let region = region(PAGE);
    let a = DmaArray::<[AtomicU64; 2]>::new(&region, 64, 4).unwrap();
    let b = DmaArray::<AtomicU32>::new(&region, 64, 16).unwrap();
    assert_eq!((a.len(), b.len(), a.iova(), b.iova()), (4, 16, region.iova(64), region.iova(64)));
    let gone = Arc::downgrade(&region);
    drop(region);
    a[3][1].store(0x0123_4567_89ab_cdef, Ordering::Relaxed);
    drop(a);
    assert_eq!((b[14].load(Ordering::Relaxed), b[15].load(Ordering::Relaxed)), (0x89ab_cdef, 0x0123_4567));
    assert!(gone.upgrade().is_some());
    drop(b);
    assert!(gone.upgrade().is_none());
}

#[test]
fn arrays_outside_their_region_or_unaligned_are_refused() {
    let region = region(2 * PAGE);
    let whole = DmaArray::<AtomicU32>::new(&region, 0, PAGE / 2).unwrap();
    assert_eq!(whole.len() * 4, region.len());
    let cases = [
        (0, PAGE / 2 + 1),
        (4, PAGE / 2),
        (0, 0),
        (2 * PAGE, 1),
        (usize::MAX - 3, 1),
        (0, usize::MAX),
        (4, 1 << 62),
        (2, 1),
    ];
    for (offset, len) in cases {
        let refused = DmaArray::<AtomicU32>::new(&region, offset, len);
        assert!(matches!(refused, Err(Error::Config(_))), "{len} items at {offset}");
    }
}
