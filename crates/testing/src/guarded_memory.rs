//! Memory for a device that does what a fuzz case says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::{DmaArray, DmaRegion, ForeignMemory, Memory, RegionConfig};

/// Words of the pages that a device must not write.
const CANARY: u64 = 0xdead_beef_0bad_cafe;
/// Descriptors of 16 bytes in a page.
const IN_A_PAGE: usize = (GuardedMemory::PAGE / 16) as usize;

/// A memory file whose first and last page are never given to the device.
pub struct GuardedMemory {
    memory: Memory,
    words: DmaArray<[AtomicU64; 2]>,
    _region: Arc<DmaRegion>,
}

impl GuardedMemory {
    /// Size of a page in bytes.
    pub const PAGE: u64 = 4096;
    /// Number of pages, with the two that are not given away.
    pub const PAGES: u64 = 16;

    /// Creates the file. Its contents are valid after [`clear`](Self::clear).
    #[expect(clippy::new_without_default, reason = "it makes a file, which no default should")]
    pub fn new() -> Self {
        let region = DmaRegion::new((Self::PAGES * Self::PAGE) as usize, &RegionConfig::default()).expect("64 KiB");
        let file = region.file().expect("no physical addresses");
        let memory = ForeignMemory::map(file, 0, region.len()).expect("the same again").into();
        let words = DmaArray::new(&region, 0, region.len() / 16).expect("all of it");
        Self { memory, words, _region: region }
    }

    /// Returns a page, to be given to the device.
    pub fn page(&self, page: u64) -> Memory {
        assert!((1..Self::PAGES - 1).contains(&page), "a page of others");
        self.memory.part((page * Self::PAGE) as usize, Self::PAGE as usize).expect("a page of the memory")
    }

    /// Returns the descriptor that a number selects from the pages of the device.
    pub fn descriptor(&self, number: u64) -> &[AtomicU64; 2] {
        let inside = &self.words[IN_A_PAGE..self.words.len() - IN_A_PAGE];
        &inside[number as usize % inside.len()]
    }

    fn canaries(&self) -> impl Iterator<Item = &AtomicU64> {
        self.words[..IN_A_PAGE].iter().chain(&self.words[self.words.len() - IN_A_PAGE..]).flatten()
    }

    /// Sets all pages of the device to zero, and the others to a pattern.
    pub fn clear(&self) {
        self.words.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        self.canaries().for_each(|word| word.store(CANARY, Ordering::Relaxed));
    }

    /// Asserts that the device has written to its own pages only.
    pub fn check(&self) {
        assert!(self.canaries().all(|word| word.load(Ordering::Relaxed) == CANARY), "memory of others");
    }
}
