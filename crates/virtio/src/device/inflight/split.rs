//! `QueueRegionSplit`: two words of header, then two for each descriptor.

use std::sync::atomic::Ordering;

use ringpass_memory::Error;

use super::{Region, VERSION, header, map, store};
use crate::device::Inflight;

/// Of a split ring's chains.
pub(in crate::device) struct SplitLog {
    region: Region,
    /// Descriptors of the region.
    count: u16,
    counter: u64,
    /// Heads that were given back and not shown, each with the one before it in the region's list; the last one.
    batch: Vec<(u16, u16)>,
    last: u16,
    used: u16,
}

/// `inflight` and `next`; `counter` is the other word.
fn state(inflight: bool, next: u16) -> u64 {
    u64::from(inflight) | u64::from(next) << 48
}

impl SplitLog {
    /// Opens a region for a ring whose used index is `used`. Returns the heads of chains that are to be taken again, too.
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
                log.settle(used.wrapping_sub((word >> 48) as u16).min(count));
                heads = log.heads(size);
            }
        }
        log.show();
        Ok((log, heads))
    }

    fn state(&self, id: u16) -> &[std::sync::atomic::AtomicU64; 2] {
        &self.region[1 + usize::from(id)]
    }

    /// Marks the last so many as given back: the guest saw them, and the region was not told.
    fn settle(&self, batch: u16) {
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

    /// What is in flight, in order.
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

    /// A chain is taken. The head is one of the ring's.
    #[inline]
    pub(in crate::device) fn take(&mut self, head: u16) {
        let [flags, counter] = self.state(head);
        store(counter, self.counter);
        store(flags, state(true, 0));
        self.counter = self.counter.wrapping_add(1);
    }

    /// It is put back.
    pub(in crate::device) fn put_back(&self, head: u16) {
        store(&self.state(head)[0], state(false, 0));
    }

    /// It is given back.
    #[inline]
    pub(in crate::device) fn give(&mut self, head: u16) {
        store(&self.state(head)[0], state(true, self.last));
        self.batch.push((head, self.last));
        self.last = head;
    }

    /// The guest is about to see them.
    pub(in crate::device) fn showing(&self) {
        self.show();
    }

    /// The used ring's index says so.
    pub(in crate::device) fn shown(&mut self, used: u16) {
        for &(head, next) in &self.batch {
            store(&self.state(head)[0], state(false, next));
        }
        self.batch.clear();
        self.used = used;
        self.show();
    }
}
