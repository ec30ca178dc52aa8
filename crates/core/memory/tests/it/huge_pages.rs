//! Tests of regions on huge pages and of physical addresses. They need root, reserve the pages that they use
//! and give them back.

#![cfg(not(miri))]

use std::fs::{self, File};
use std::sync::atomic::{AtomicU32, Ordering};

use ringpass_memory::{
    Addressing, Burst, ContiguousRange, DmaArray, DmaRegion, Error, Mempool, MempoolConfig, PageSize, RegionConfig,
    SwapPool, SwapPoolConfig, huge_pages_free,
};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const PAGE: usize = 2 << 20;
const NR: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const VIRTUAL: RegionConfig =
    RegionConfig { pages: PageSize::Huge2M, addressing: Addressing::Virtual, numa_node: None };
const PHYSICAL: RegionConfig = RegionConfig { addressing: Addressing::Physical, ..VIRTUAL };

/// Huge pages reserved for one test at a time. Restores their number when dropped.
struct Reserved {
    before: usize,
    _lock: File,
}

impl Reserved {
    /// Reserves pages so that at least `pages` of 2 MiB are free.
    fn new(pages: usize) -> Self {
        let lock = File::open(NR).expect("this kernel has no huge pages of 2 MiB; the tests need them");
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let (free, total) = huge_pages_free(PageSize::Huge2M);
        let reserved = Self { before: total, _lock: lock };
        set_total(total + pages.saturating_sub(free));
        reserved
    }
}

fn set_total(pages: usize) {
    fs::write(NR, pages.to_string()).unwrap_or_else(|e| panic!("{NR}: {e}; the huge page tests must run as root"));
    let (_, total) = huge_pages_free(PageSize::Huge2M);
    assert!(total >= pages, "{pages} huge pages of 2 MiB were asked for, memory has room for {total}");
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = fs::write(NR, self.before.to_string());
    }
}

#[test]
fn a_region_takes_its_pages_and_gives_them_back() {
    let _reserved = Reserved::new(3);
    let (free, total) = huge_pages_free(PageSize::Huge2M);
    let region = DmaRegion::new(2 * PAGE + 1, &VIRTUAL).unwrap();
    assert_eq!(region.len(), 3 * PAGE);
    assert_eq!(huge_pages_free(PageSize::Huge2M), (free - 3, total));
    assert_eq!(region.iova(3 * PAGE - 1), region.at(3 * PAGE - 1) as u64);
    assert_eq!(
        region.contiguous_ranges().collect::<Vec<_>>(),
        [ContiguousRange { iova: region.iova(0), offset: 0, len: 3 * PAGE }]
    );
    drop(region);
    assert_eq!(huge_pages_free(PageSize::Huge2M), (free, total));
}

#[test]
fn physical_addresses_are_those_of_the_pages() {
    let _reserved = Reserved::new(4);
    let region = DmaRegion::new(4 * PAGE, &PHYSICAL).unwrap();
    let ram = ram();
    let mut contiguous_ranges: Vec<_> = region.contiguous_ranges().collect();
    assert_eq!(contiguous_ranges.len(), 4);
    for &ContiguousRange { iova, offset, len } in &contiguous_ranges {
        assert_eq!((iova % PAGE as u64, offset % PAGE, len), (0, 0, PAGE));
        assert!(ram.iter().any(|&(from, to)| from <= iova && iova + len as u64 - 1 <= to), "{iova:#x} is no RAM");
        // Each 4 KiB page of it is where the address of its huge page implies.
        for inside in (0..PAGE).step_by(4096) {
            assert_eq!(region.iova(offset + inside + 123), iova + inside as u64 + 123);
            assert_eq!(pagemap(region.at(offset + inside) as usize), iova + inside as u64);
        }
    }
    contiguous_ranges.sort_unstable_by_key(|range| range.iova);
    contiguous_ranges.dedup_by_key(|range| range.iova);
    assert_eq!(contiguous_ranges.len(), 4, "pages are distinct");
}

/// Returns the physical address ranges of system memory.
fn ram() -> Vec<(u64, u64)> {
    let map = fs::read_to_string("/proc/iomem").unwrap();
    let range = |line: &str| {
        let (from, to) = line.strip_suffix(" : System RAM")?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    };
    map.lines().filter_map(range).collect()
}

/// Asks the kernel for a physical address, in another way than the crate does.
fn pagemap(address: usize) -> u64 {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open("/proc/self/pagemap").unwrap();
    file.seek(SeekFrom::Start(address as u64 >> 12 << 3)).unwrap();
    let mut entry = [0; 8];
    file.read_exact(&mut entry).unwrap();
    let entry = u64::from_ne_bytes(entry);
    assert!(entry >> 63 == 1, "present");
    entry << 9 >> 9 << 12
}

#[test]
fn pages_that_a_card_writes_to_are_not_shared() {
    let _reserved = Reserved::new(1);
    let region = DmaRegion::new(PAGE, &PHYSICAL).unwrap();
    let refused = region.file().unwrap_err();
    assert!(matches!(refused, Error::PhysicalShared), "{refused}");
    let config = SwapPoolConfig { front: 0, buffers: 8, own: 1, size: 2048, region: PHYSICAL };
    assert!(matches!(SwapPool::new(&config), Err(Error::PhysicalShared)));
}

/// Punches a hole into the region's file, and another program takes the page before this one reads it. Runs in
/// a child process, which SIGBUS would end.
#[test]
fn a_page_that_is_taken_away_reads_as_zeros() {
    const CHILD: &str = "RINGPASS_HUGE_PAGES_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let region = DmaRegion::new(2 * PAGE, &VIRTUAL).unwrap();
        // SAFETY: the callers' offsets are inside the region and multiples of 4.
        let word = |offset| unsafe { AtomicU32::from_ptr(region.at(offset).cast()) };
        word(0).store(7, Ordering::Relaxed);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(region.file().unwrap(), hole, 0, PAGE as u64).unwrap();
        let taken = DmaRegion::new(huge_pages_free(PageSize::Huge2M).0 * PAGE, &VIRTUAL).unwrap();
        assert_eq!(word(0).load(Ordering::Relaxed), 0);
        word(PAGE).store(8, Ordering::Relaxed);
        assert_eq!(word(PAGE).load(Ordering::Relaxed), 8);
        drop(taken);
        return;
    }
    let _reserved = Reserved::new(2);
    let test = std::env::current_exe().unwrap();
    let arguments = ["--exact", "huge_pages::a_page_that_is_taken_away_reads_as_zeros", "--nocapture"];
    let child = std::process::Command::new(test).args(arguments).env(CHILD, "1").output().unwrap();
    assert!(child.status.success(), "{child:?}");
}

#[test]
fn with_physical_addresses_nothing_straddles_pages() {
    let _reserved = Reserved::new(4);
    let region = DmaRegion::new(2 * PAGE, &PHYSICAL).unwrap();
    let array = |offset, len| DmaArray::<AtomicU32>::new(&region, offset, len);
    assert_eq!(array(PAGE, PAGE / 4).unwrap().iova(), region.iova(PAGE));
    assert_eq!(array(PAGE - 4, 1).unwrap().iova(), region.iova(PAGE - 4));
    for (offset, len) in [(PAGE - 4, 2), (0, PAGE / 2), (0, PAGE / 4 + 1)] {
        let refused = array(offset, len).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("pages"), "{refused}");
    }
    drop(region);

    let pool = Mempool::new(&MempoolConfig { buffers: 1800, size: 2048, region: PHYSICAL }).unwrap();
    let contiguous_ranges: Vec<_> = pool.region().contiguous_ranges().collect();
    assert!(contiguous_ranges.len() >= 2);
    let (mut cache, mut seen) = (pool.cache(), 0);
    let mut bursts = Vec::new();
    while seen < 1800 {
        let mut burst = Burst::new(200);
        cache.alloc(&mut burst);
        seen += burst.len();
        for packet in burst.iter() {
            let (from, to) = (packet.iova(), packet.iova() + packet.capacity() as u64);
            let &ContiguousRange { iova, offset, .. } = contiguous_ranges
                .iter()
                .find(|range| range.iova <= from && to <= range.iova + range.len as u64)
                .expect("in one page");
            let inside = packet.as_ptr() as usize - pool.region().at(offset) as usize;
            assert_eq!(from - iova, inside as u64, "both addresses are of the same byte");
        }
        bursts.push(burst);
    }
}

#[test]
fn too_few_pages_are_refused_with_the_remedy() {
    let reserved = Reserved::new(0);
    let (free, total) = huge_pages_free(PageSize::Huge2M);
    let refused = DmaRegion::new((free + 2) * PAGE, &VIRTUAL).unwrap_err();
    assert!(matches!(refused, Error::HugePages { .. }));
    let text = refused.to_string();
    let remedy = format!("echo {} | sudo tee {NR}", total + 2);
    assert_eq!(
        text,
        format!("{} huge pages of 2048 KiB are needed, {free} are free; reserve them: {remedy}", free + 2)
    );
    assert_eq!(huge_pages_free(PageSize::Huge2M), (free, total), "nothing was taken");
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    assert_eq!(files.filter(|file| file.to_string_lossy().contains("ringpass-dma")).count(), 0, "no file is left");
    assert!(!fs::read_to_string("/proc/self/maps").unwrap().contains("ringpass-dma"), "no mapping is left");
    // Following the error's advice helps.
    set_total(total + 2);
    drop(DmaRegion::new((free + 2) * PAGE, &VIRTUAL).unwrap());
    drop(reserved);
}

#[test]
fn without_the_capability_physical_addresses_are_hidden() {
    let _reserved = Reserved::new(1);
    let before = huge_pages_free(PageSize::Huge2M);
    // Capabilities belong to a thread; this one ends with the test.
    let refused = std::thread::spawn(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_ADMIN);
        set_capabilities(None, sets).unwrap();
        DmaRegion::new(PAGE, &PHYSICAL).unwrap_err()
    });
    let refused = refused.join().unwrap();
    assert!(matches!(refused, Error::PhysicalHidden), "{refused}");
    assert_eq!(huge_pages_free(PageSize::Huge2M), before, "the pages were given back");
}
