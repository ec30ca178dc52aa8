//! Map of the memory that a guest has made available for writing. All other bytes keep a pattern.

use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::DmaRegion;
use ringpass_virtio::features::RING_PACKED;

use crate::common::{Area, Guest};

/// Pattern of memory that nobody has written to.
const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// Descriptor flags.
const WRITE: u64 = 2;
const INDIRECT: u64 = 4;

/// Mask of writable bytes for each 64-bit word of the guest's buffers.
pub struct WritableMap {
    buffers: std::sync::Arc<DmaRegion>,
    masks: Vec<u64>,
    /// The ring's descriptors at the last scan.
    cells: Vec<[u64; 2]>,
    /// Whether the guest allows writes over its ring, or has tables that are not understood: any byte may then be
    /// writable.
    wild: bool,
}

impl WritableMap {
    pub fn new(guest: &Guest) -> Self {
        let buffers = guest.pool.region().clone();
        words(&buffers).iter().for_each(|word| word.store(UNTOUCHED, Ordering::Relaxed));
        let masks = vec![0; words(&buffers).len()];
        Self { buffers, masks, cells: Vec::new(), wild: false }
    }

    /// Scans the ring and adds the buffers of its writable descriptors, whether available or not.
    pub fn look(&mut self, guest: &Guest) {
        let setup = guest.setup(0, 0);
        self.cells.resize(setup.size.into(), [0; 2]);
        for slot in 0..self.cells.len() {
            let part = |at| u64::from(guest.peek(0, Area::Descriptors, 16 * slot + at));
            let word = |at: usize| (0..4).fold(0, |word, n| word | part(at + 2 * n) << (16 * n));
            let cell = [word(0), word(8)];
            if guest.features & RING_PACKED != 0 && (cell[1] >> 55 ^ cell[1] >> 63) & 1 == 0 {
                // The slot was used or never made available.
                continue;
            }
            if std::mem::replace(&mut self.cells[slot], cell) != cell || self.flags(guest, cell) & INDIRECT != 0 {
                self.descriptor(guest, cell);
            }
        }
    }

    fn flags(&self, guest: &Guest, cell: [u64; 2]) -> u64 {
        cell[1] >> if guest.features & RING_PACKED != 0 { 48 } else { 32 }
    }

    fn descriptor(&mut self, guest: &Guest, cell: [u64; 2]) {
        let (flags, [address, len]) = (self.flags(guest, cell), [cell[0], cell[1] & 0xffff_ffff]);
        if flags & INDIRECT == 0 {
            if flags & WRITE != 0 {
                self.show(guest, address, len);
            }
            return;
        }
        // Longer tables are not read.
        let count = (len / 16).min(self.cells.len() as u64);
        let ends = guest.queue_end(0) as u64;
        let offset = address.wrapping_sub(guest.rings().iova(0));
        let tables = words(guest.rings());
        if !offset.is_multiple_of(8) || offset < ends || offset.saturating_add(16 * count) > 8 * tables.len() as u64 {
            self.wild = true;
            return;
        }
        for entry in tables[offset as usize / 8..].chunks_exact(2).take(count as usize) {
            let cell = [entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed)];
            if self.flags(guest, cell) & WRITE != 0 {
                self.show(guest, cell[0], cell[1] & 0xffff_ffff);
            }
        }
    }

    /// Marks these bytes as writable.
    fn show(&mut self, guest: &Guest, address: u64, len: u64) {
        let part = |region: &DmaRegion| {
            let (start, end) = (region.iova(0), region.iova(0) + region.len() as u64);
            let (from, to) = (address.max(start), address.saturating_add(len).min(end));
            (from < to).then(|| (from - start) as usize..(to - start) as usize)
        };
        self.wild |= part(guest.rings()).is_some();
        let Some(bytes) = part(&self.buffers) else { return };
        for at in bytes.start / 8..bytes.end.div_ceil(8) {
            let from = bytes.start.saturating_sub(8 * at);
            let to = (bytes.end - 8 * at).min(8);
            self.masks[at] |= (u64::MAX >> (64 - 8 * (to - from))) << (8 * from);
        }
    }

    /// Checks after the end of a lease that only writable bytes were written, restores the pattern and marks all
    /// bytes as not writable.
    pub fn check(&mut self) {
        for (word, mask) in words(&self.buffers).iter().zip(&mut self.masks) {
            let changed = (word.load(Ordering::Relaxed) ^ UNTOUCHED) & !*mask != 0;
            assert!(!changed || self.wild, "bytes were written that the guest has not shown");
            if *mask != 0 || changed {
                word.store(UNTOUCHED, Ordering::Relaxed);
                *mask = 0;
            }
        }
        self.cells.clear();
    }

    /// Starts over for another guest.
    pub fn forget(&mut self) {
        self.wild = false;
        self.check();
    }
}

fn words(region: &DmaRegion) -> &[AtomicU64] {
    // SAFETY: the region has `len() / 8` words, is page-aligned and stays mapped as long as it is borrowed.
    // `AtomicU64` allows changes under a shared reference.
    unsafe { std::slice::from_raw_parts(region.at(0).cast(), region.len() / 8) }
}
