//! `QueueRegionPacked`: four words of header, then four for each descriptor that was taken from the ring. The
//! entries of a chain are linked in a list, and so are the free entries.

use std::sync::atomic::Ordering;

use ringpass_memory::Error;

use super::{Region, VERSION, header, map, store};
use crate::device::Inflight;
use crate::device::chains::{Descriptor, RawDescriptor};
use crate::layout::flags;
use crate::slot::WrapIndex;

/// The inflight region of a packed ring.
pub(in crate::device) struct PackedInflight {
    region: Region,
    count: u16,
    counter: u64,
    /// The next entry, by entry: in the same chain or in the list of free ones. `count` ends a list.
    next: Box<[u16]>,
    free: Heads,
    used: Used,
    /// The chain that contains a buffer, by the buffer's id.
    chains: Box<[Entries]>,
    /// Chains that were given back and not published yet.
    batch: Vec<Entries>,
}

/// A value that is being changed, and the value that is restored if this process ends before the change is
/// complete.
#[derive(Clone, Copy, Default)]
struct Change<T> {
    now: T,
    old: T,
}

type Heads = Change<u16>;
type Used = Change<u16>;

/// The entries of a chain.
#[derive(Clone, Copy, Default)]
struct Entries {
    first: u16,
    last: u16,
    count: u16,
}

/// The descriptors of a chain that another process had taken.
pub(in crate::device) type InflightChain = Vec<[u64; 2]>;

/// An inflight region that was opened.
pub(in crate::device) struct Opened {
    pub(in crate::device) log: PackedInflight,
    /// Chains that must be taken again.
    pub(in crate::device) lost: Vec<InflightChain>,
    /// The next used slot.
    pub(in crate::device) used: WrapIndex,
}

const CYCLE: Error = Error::Config("an inflight region whose lists are wrong");

impl PackedInflight {
    /// Opens a region, for a ring that is at `base` unless the region has a position of its own.
    pub(in crate::device) fn open(
        inflight: &Inflight,
        size: u16,
        ring: &[RawDescriptor],
        base: WrapIndex,
    ) -> Result<Opened, Error> {
        let region = map(inflight, 2)?;
        let room = (region.len() - 2) / 2;
        if room < size.into() {
            return Err(Error::Config("an inflight region that is too small for its queue"));
        }
        let known = header(&region, size, room)?;
        let count = known.map_or(room.min(usize::from(u16::MAX)) as u16, |(_, count)| count);
        let position = Change { now: base.with_wrap(), old: base.with_wrap() };
        let mut log = Self {
            region,
            count,
            counter: 0,
            next: (1..=count).collect(),
            free: Heads::default(),
            used: position,
            chains: vec![Entries::default(); size.into()].into(),
            batch: Vec::with_capacity(size.into()),
        };
        let mut lost = Vec::new();
        match known {
            None => (0..count).for_each(|entry| log.link(entry, 0, Entries::default())),
            Some((word, _)) => {
                log.load((word >> 32) as u16, (word >> 48) as u16, size, ring)?;
                lost = log.lost(size)?;
            }
        }
        log.show_used();
        log.show_free();
        let used = log.used.now;
        Ok(Opened { log, lost, used: WrapIndex { index: used & 0x7fff, wrap: used >> 15 != 0 } })
    }

    /// Loads the state of the region. A change that was in progress is completed or undone.
    fn load(&mut self, free: u16, old_free: u16, size: u16, ring: &[RawDescriptor]) -> Result<(), Error> {
        let word = self.region[1][0].load(Ordering::Acquire);
        let slot = |index: u64, wrap: u64| (index as u16 & 0x7fff) | u16::from(wrap as u8 != 0) << 15;
        let used = Used { now: slot(word, word >> 32), old: slot(word >> 16, word >> 40) };
        let at = WrapIndex { index: used.old & 0x7fff, wrap: used.old >> 15 != 0 };
        if at.index >= size || used.now & 0x7fff >= size || free > self.count || old_free > self.count {
            return Err(Error::Config("an inflight region whose positions are not in the ring"));
        }
        let first = Descriptor::packed([0, ring[usize::from(at.index)][1].load(Ordering::Acquire)]);
        // The first slot of the batch: if it is not available any more, the guest was shown the batch.
        let seen = used.now != used.old && first.flags & (flags::AVAIL | flags::USED) != at.available();
        let (free, used) = if seen { (free, used.now) } else { (old_free, used.old) };
        self.free = Heads { now: free, old: free };
        self.used = Used { now: used, old: used };
        for (entry, next) in self.next.iter_mut().enumerate() {
            *next = (self.region[2 + 2 * entry][0].load(Ordering::Acquire) >> 16) as u16;
        }
        Ok(())
    }

    /// Returns the chains in flight. Fails unless they and the free list contain each entry exactly once.
    fn lost(&mut self, size: u16) -> Result<Vec<InflightChain>, Error> {
        let mut known = vec![false; self.count.into()];
        let mut claim = |entry: u16| match known.get_mut(usize::from(entry)) {
            Some(known) if !*known => {
                *known = true;
                Ok(())
            }
            _ => Err(CYCLE),
        };
        let (mut entry, mut entries) = (self.free.now, 0);
        while entry < self.count {
            claim(entry)?;
            store(&self.region[2 + 2 * usize::from(entry)][0], u64::from(self.next[usize::from(entry)]) << 16);
            entry = self.next[usize::from(entry)];
            entries += 1;
        }
        let mut heads = Vec::new();
        for entry in 0..self.count {
            let [word, counter] = &self.region[2 + 2 * usize::from(entry)];
            let word = word.load(Ordering::Acquire);
            if word as u8 != 0 {
                heads.push((counter.load(Ordering::Relaxed), entry, (word >> 48) as u16));
            }
        }
        heads.sort_unstable();
        self.counter = heads.last().map_or(0, |(counter, ..)| counter.wrapping_add(1));
        let (mut lost, mut slots) = (Vec::new(), 0);
        for (_, first, count) in heads {
            slots += u32::from(count);
            if count == 0 || slots > size.into() {
                return Err(CYCLE);
            }
            let mut descriptors = Vec::new();
            let mut last = first;
            let mut entry = first;
            for _ in 0..count {
                claim(entry)?;
                let [info, address] = &self.region[3 + 2 * usize::from(entry)];
                let info = info.load(Ordering::Relaxed);
                descriptors.push([address.load(Ordering::Relaxed), info.rotate_left(32)]);
                (last, entry) = (entry, self.next[usize::from(entry)]);
                entries += 1;
            }
            let id = Descriptor::packed(descriptors[descriptors.len() - 1]).number;
            *self.chains.get_mut(usize::from(id)).ok_or(CYCLE)? = Entries { first, last, count };
            lost.push(descriptors);
        }
        if entries == self.count { Ok(lost) } else { Err(CYCLE) }
    }

    /// Writes the list fields of an entry and, for the first of a chain, whether it is in flight.
    fn link(&self, entry: u16, inflight: u8, chain: Entries) {
        let word = u64::from(inflight)
            | u64::from(self.next[usize::from(entry)]) << 16
            | u64::from(chain.last) << 32
            | u64::from(chain.count) << 48;
        store(&self.region[2 + 2 * usize::from(entry)][0], word);
    }

    fn show_free(&self) {
        let word = u64::from(VERSION)
            | u64::from(self.count) << 16
            | u64::from(self.free.now) << 32
            | u64::from(self.free.old) << 48;
        store(&self.region[0][1], word);
    }

    fn show_used(&self) {
        let index = |slot: u16| u64::from(slot & 0x7fff);
        let wrap = |slot: u16| u64::from(slot >> 15);
        let Used { now, old } = self.used;
        store(&self.region[1][0], index(now) | index(old) << 16 | wrap(now) << 32 | wrap(old) << 40);
    }

    /// Records that a chain of these descriptors is taken. The ring bounds the descriptors of all chains in
    /// flight, so there are enough free entries.
    #[inline]
    pub(in crate::device) fn take(&mut self, id: u16, descriptors: &[[u64; 2]]) {
        let first = self.free.now;
        let mut last = 0;
        let mut entry = self.free.now;
        for [address, word] in descriptors {
            let [info, place] = &self.region[3 + 2 * usize::from(entry)];
            store(place, *address);
            store(info, word.rotate_left(32));
            (last, entry) = (entry, self.next[usize::from(entry)]);
        }
        let chain = Entries { first, last, count: descriptors.len() as u16 };
        store(&self.region[2 + 2 * usize::from(first)][1], self.counter);
        self.link(first, 1, chain);
        self.counter = self.counter.wrapping_add(1);
        self.chains[usize::from(id)] = chain;
        // The entries remain free for another process until the region's header is written.
        self.free = Heads { now: entry, old: entry };
    }

    /// Records the chains taken so far as in flight, by writing the header.
    pub(in crate::device) fn commit_taken(&self) {
        self.show_free();
    }

    /// Puts the entries of a chain at the front of the free list.
    fn release(&mut self, chain: Entries) {
        self.next[usize::from(chain.last)] = self.free.now;
        if chain.last == chain.first {
            self.link(chain.first, 1, chain);
        } else {
            self.link(chain.last, 0, Entries::default());
        }
        self.free.now = chain.first;
    }

    /// Records that a chain is put back.
    pub(in crate::device) fn put_back(&mut self, id: u16) {
        let chain = self.chains[usize::from(id)];
        self.release(chain);
        self.free.old = self.free.now;
        self.show_free();
        self.link(chain.first, 0, chain);
    }

    /// Records that a chain is given back.
    pub(in crate::device) fn give(&mut self, id: u16) {
        self.batch.push(self.chains[usize::from(id)]);
    }

    /// Prepares for publishing to the guest what was given back, up to slot `used`.
    pub(in crate::device) fn before_publish(&mut self, used: WrapIndex) {
        for at in 0..self.batch.len() {
            self.release(self.batch[at]);
        }
        self.show_free();
        self.used.now = used.with_wrap();
        self.show_used();
    }

    /// Completes the batch after it was published to the guest.
    pub(in crate::device) fn published(&mut self) {
        for chain in &self.batch {
            self.link(chain.first, 0, *chain);
        }
        self.batch.clear();
        self.free.old = self.free.now;
        self.show_free();
        self.used.old = self.used.now;
        self.show_used();
    }
}
