//! Log of the pages that a back-end has written to, which lets the front-end migrate a running guest ("Migration").

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::{Cells, ForeignMemory, Memory};
use ringpass_virtio::device::GuestMemory;

use crate::Refusal;
use crate::message::refuse;

/// Bytes of the guest's memory for which there is a bit.
const PAGE: u64 = 4096;
/// Largest log in bytes: that of 256 TiB.
const MAX_SIZE: u64 = 8 << 30;
/// The front-end maps files from page boundaries; the log may begin in the middle of one.
const MAP_ALIGN: u64 = 4096;

/// A log in the front-end's memory: a bit for each page of 4 KiB, by guest physical address. Any number of threads may mark pages, while the front-end
/// clears bits.
pub struct DirtyLog {
    words: Cells<AtomicU64>,
    memory: Arc<ForeignMemory>,
}

impl DirtyLog {
    /// Maps a log of `size` bytes from `offset` of a file ("SET_LOG_BASE"), for this memory of the guest.
    ///
    /// # Errors
    /// It is no log, in no file in memory, or too small for that memory.
    pub fn map(size: u64, offset: u64, file: &OwnedFd, guest: &GuestMemory) -> Result<Self, Refusal> {
        if size == 0 || size > MAX_SIZE || !(size | offset).is_multiple_of(8) {
            return refuse(format!("a log of {size:#x} bytes from {offset:#x} of a file; both must be multiples of 8"));
        }
        let before = offset % MAP_ALIGN;
        let memory = ForeignMemory::map(file.as_fd(), offset - before, (before + size) as usize);
        let memory = memory.map_err(|error| Refusal(format!("a log of {size:#x} bytes: {error}")))?;
        let words = Memory::from(memory.clone()).cells(before as usize, size as usize / 8);
        let Some(words) = words else { return refuse("a log that is not aligned") };
        let log = Self { words, memory };
        log.check_covers(guest)?;
        Ok(log)
    }

    /// Refuses memory of the guest for which the log has no bits.
    pub(crate) fn check_covers(&self, guest: &GuestMemory) -> Result<(), Refusal> {
        let end = guest.regions().last().map_or(0, |region| region.guest + region.len);
        let covered = self.words.len() as u64 * 64 * PAGE;
        if end > covered {
            return refuse(format!(
                "a log of the first {covered:#x} bytes of a guest's memory, which ends at {end:#x}"
            ));
        }
        Ok(())
    }

    /// Marks the pages of `len` bytes at a guest physical address, after they were written.
    #[inline]
    pub fn mark(&self, address: u64, len: u64) {
        let Some(last) = len.checked_sub(1).map(|before| address.saturating_add(before) / PAGE) else { return };
        for page in address / PAGE..=last {
            let Some(word) = self.words.get((page / 64) as usize) else { return };
            let bit = 1 << (page % 64);
            // Release: who clears the bit reads what was written before it was set.
            if word.load(Ordering::Acquire) & bit == 0 {
                word.fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    /// Returns whether the log was taken away.
    pub(crate) fn lost(&self) -> bool {
        self.memory.lost()
    }
}
