//! `QueueRegionSplit`: two words of header, then two for each descriptor.

use std::sync::atomic::Ordering;

use ringpass_memory::Error;

use super::{Region, VERSION, header, map, store};
use crate::device::Inflight;

/// The inflight region of a split ring.
pub(in crate::device) struct SplitInflight {
    region: Region,
    /// Number of descriptors in the region.
    count: u16,
    counter: u64,
    /// Heads that were given back and not published yet, each with the one before it in the region's list.
    batch: Vec<(u16, u16)>,
    /// The head that was given back last.
    last: u16,
    used: u16,
}

/// Returns the word with the fields `inflight` and `next`; `counter` is in the other word.
fn state(inflight: bool, next: u16) -> u64 {
    u64::from(inflight) | u64::from(next) << 48
}

impl SplitInflight {
    /// Opens a region for a ring whose used index is `used`. Also returns the heads of the chains that must be
    /// taken again.
    pub(in crate::device) fn open(inflight: &Inflight, size: u16, used: u16) -> Result<(Self, Vec<u16>), Error> {
        let region = map(inflight, 1)?;
        let room = region.len() - 1;
        if room < size.into() {
            return Err(Error::Config("an inflight region that is too small for its queue"));
        }
        let known = header(&region, size, room)?;
        let count = known.map_or(room.min(usize::from(u16::MAX)) as u16, |(_, count)| count);
        let mut log = Self { region, count, counter: 0, batch: Vec::with_capacity(size.into()), last: 0, used };
        let mut heads = Vec::new();
        match known {
            None => (0..count).for_each(|id| store(&log.state(id)[0], 0)),
            Some((word, _)) => {
                log.last = (word >> 32) as u16;
                log.finish_last_batch(used.wrapping_sub((word >> 48) as u16).min(count));
                heads = log.heads(size);
            }
        }
        log.show();
        Ok((log, heads))
    }

    fn state(&self, id: u16) -> &[std::sync::atomic::AtomicU64; 2] {
        &self.region[1 + usize::from(id)]
    }

    /// Marks the last `batch` chains as given back: the used index was published to the guest, but the region
    /// was not updated.
    fn finish_last_batch(&self, batch: u16) {
        let mut id = self.last;
        for _ in 0..batch {
            if id >= self.count {
                break;
            }
            let next = (self.state(id)[0].load(Ordering::Acquire) >> 48) as u16;
            store(&self.state(id)[0], state(false, next));
            id = next;
        }
    }

    /// Returns the heads of the chains in flight, in the order in which they were taken.
    fn heads(&mut self, size: u16) -> Vec<u16> {
        let inflight = |&id: &u16| self.state(id)[0].load(Ordering::Acquire) as u8 != 0;
        let mut heads: Vec<(u64, u16)> =
            (0..size).filter(inflight).map(|id| (self.state(id)[1].load(Ordering::Relaxed), id)).collect();
        heads.sort_unstable();
        self.counter = heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        heads.into_iter().map(|(_, id)| id).collect()
    }

    fn show(&self) {
        let word =
            u64::from(VERSION) | u64::from(self.count) << 16 | u64::from(self.last) << 32 | u64::from(self.used) << 48;
        store(&self.region[0][1], word);
    }

    /// Records that a chain is taken. `head` must be a valid descriptor of the ring.
    #[inline]
    pub(in crate::device) fn take(&mut self, head: u16) {
        let [flags, counter] = self.state(head);
        store(counter, self.counter);
        store(flags, state(true, 0));
        self.counter = self.counter.wrapping_add(1);
    }

    /// Records that a chain is put back.
    pub(in crate::device) fn put_back(&self, head: u16) {
        store(&self.state(head)[0], state(false, 0));
    }

    /// Records that a chain is given back.
    #[inline]
    pub(in crate::device) fn give(&mut self, head: u16) {
        store(&self.state(head)[0], state(true, self.last));
        self.batch.push((head, self.last));
        self.last = head;
    }

    /// Prepares for publishing to the guest what was given back.
    pub(in crate::device) fn before_publish(&self) {
        self.show();
    }

    /// Completes the batch after the used index `used` was published.
    pub(in crate::device) fn published(&mut self, used: u16) {
        for &(head, next) in &self.batch {
            store(&self.state(head)[0], state(false, next));
        }
        self.batch.clear();
        self.used = used;
        self.show();
    }
}
