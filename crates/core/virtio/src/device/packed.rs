//! Packed rings (section 2.8): one ring of descriptors, which the guest makes available and the device marks as
//! used, in the same slots.

mod give;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ringpass_memory::{Access, Avx2, Error, prefetch};

use super::cells::SharedArray;
use super::chains::{ChainWalker, Descriptor, Pieces, RawDescriptor, read};
use super::inflight::{InflightChain, InflightReplay, PackedInflight};
use super::memory::RegionCache;
use super::prefetch::{LINE, prefetch_frame};
use super::vector::{self, Taking};
use super::{
    Broken, Chain, ChainBatch, CreateVirtqueue, DeviceAccess, GuestMemory, Piece, Used, Virtqueue, VringConfig,
};
use crate::features::{EVENT_IDX, INDIRECT_DESC};
use crate::layout::{MAX_SIZE, event, flags};
use crate::slot::WrapIndex;

/// The device's side of a packed ring.
pub struct Packed {
    setup: VringConfig,
    memory: Arc<GuestMemory>,
    region_cache: RegionCache,
    parts: Parts,
    /// Whether the device has a buffer (1 or 0), by the buffer's id.
    taken: Box<[u8]>,
    /// Direction of the queue's chains.
    access: DeviceAccess,
    /// The next slot that the guest makes available.
    head: WrapIndex,
    /// The next slot that the device marks as used.
    used: WrapIndex,
    /// Number of slots from `used` to `head`, without those that were given back and not published yet.
    held: u16,
    /// Number of slots that were given back and not published yet.
    unpublished: u16,
    /// The first slot that was given back and not published yet, and its second word. Writing that word
    /// publishes the others too.
    first: Option<(WrapIndex, u64)>,
    /// The last value that the device wrote to its event suppression.
    suppression: u32,
    broken: Option<Broken>,
    /// Chains that another process had taken.
    replay: InflightReplay<InflightChain>,
    /// The inflight region, which records chains for a later process.
    log: Option<PackedInflight>,
    /// Descriptors of the chain that is being taken, for `log`.
    descriptors: Vec<[u64; 2]>,
}

/// The parts of the ring, in this process's memory.
struct Parts {
    ring: SharedArray<RawDescriptor>,
    /// Event suppression: offset and wrap bit, flags in the upper 16 bits.
    driver_event: SharedArray<AtomicU32>,
    device_event: SharedArray<AtomicU32>,
}

impl Parts {
    fn new(setup: &VringConfig, memory: &Arc<GuestMemory>) -> Result<Self, Error> {
        Ok(Self {
            ring: SharedArray::new(memory, setup.descriptors, setup.size.into(), 16)?,
            driver_event: SharedArray::new(memory, setup.driver, 1, 4)?,
            device_event: SharedArray::new(memory, setup.device, 1, 4)?,
        })
    }
}

/// The flags that tell the owner of a descriptor.
const OWNER_FLAGS: u16 = flags::AVAIL | flags::USED;

impl Packed {
    fn has(&self, feature: u64) -> bool {
        self.setup.features & feature != 0
    }

    fn size(&self) -> u16 {
        self.setup.size
    }

    /// Returns the number of slots that may be available.
    fn room(&self) -> u16 {
        self.size() - self.held - self.unpublished
    }

    /// Returns whether the next descriptor is available.
    #[inline(always)]
    fn ready(&self) -> bool {
        let word = self.parts.ring[usize::from(self.head.index)][1].load(Ordering::Acquire);
        Descriptor::packed([0, word]).flags & OWNER_FLAGS == self.head.available()
    }

    /// Returns up to `n` slots from the head on, without wrapping.
    #[inline(always)]
    fn run(&self, n: u16) -> std::ops::Range<usize> {
        let start = usize::from(self.head.index);
        start..(start + usize::from(n)).min(self.size().into())
    }

    /// Prefetches the cache lines of up to `n` slots from the head on.
    #[inline(always)]
    fn prefetch(&self, n: u16, access: Access) {
        let run = self.run(n);
        let lines = self.parts.ring[run].iter().step_by(LINE / size_of::<RawDescriptor>());
        lines.for_each(|line| prefetch(line, access));
    }

    /// Takes chains of one descriptor each from a run of slots, and stops at the first chain that is not plain.
    /// Returns the number taken. With AVX2, `note` is not called.
    #[inline(always)]
    fn take_plain(
        &mut self,
        avx2: Option<Avx2>,
        flags: u16,
        run: std::ops::Range<usize>,
        chains: &mut Vec<Chain>,
        prefetch: impl Fn(*const u8),
        mut note: impl FnMut(u16, [u64; 2]),
    ) -> u16 {
        let flags = flags | self.head.available();
        // Kept in locals: through `self`, each would be loaded again for each packet.
        let Self { parts, taken, region_cache, .. } = self;
        let (marks, region_cache) = (&mut taken[..], *region_cache);
        let (ring, places) = (&parts.ring[run], chains.spare_capacity_mut());
        let mut count = avx2.map_or(0, |avx2| {
            let to = Taking { flags, marks, region: region_cache, places, prefetch: &prefetch };
            // SAFETY: the processor has AVX2, as `avx2` proves.
            unsafe { vector::take_packed(avx2, ring, to) }
        });
        for (cell, place) in ring[count..].iter().zip(&mut places[count..]) {
            let words = read(cell);
            let descriptor = Descriptor::packed(words);
            let id = descriptor.number;
            if descriptor.flags != flags {
                break;
            }
            let Some(mark) = marks.get_mut(usize::from(id)).filter(|mark| **mark == 0) else { break };
            let Some(start) = region_cache.at(descriptor.address, descriptor.len) else { break };
            *mark = 1;
            prefetch(start.as_ptr());
            note(id, words);
            place.write(Chain { id, descriptors: 1, first: Piece { start, len: descriptor.len }, more: (0, 0) });
            count += 1;
        }
        // SAFETY: the loops have written `count` elements of the spare capacity, from its start on.
        unsafe { chains.set_len(chains.len() + count) };
        let count = count as u16;
        self.head.advance(count, self.setup.size);
        self.held += count;
        count
    }

    /// Takes the next chain, of any kind; returns `false` if none is available.
    #[inline(never)]
    fn take_any(&mut self, access: DeviceAccess, taken: &mut ChainBatch) -> Result<bool, Broken> {
        self.descriptors.clear();
        let pieces = taken.pieces.len();
        let chain = self.walk(access, taken).inspect_err(|_| taken.pieces.truncate(pieces));
        let Some(chain) = chain.map_err(|broken| *self.broken.insert(broken))? else { return Ok(false) };
        prefetch_frame(chain.first.start.as_ptr(), access);
        self.taken[usize::from(chain.id)] = 1;
        taken.chains.push(chain);
        if self.replay.peek().is_some() {
            self.replay.advance();
            return Ok(true);
        }
        self.head.advance(chain.descriptors, self.setup.size);
        self.held += chain.descriptors;
        if let Some(log) = &mut self.log {
            log.take(chain.id, &self.descriptors);
            log.commit_taken();
        }
        Ok(true)
    }

    /// Takes up to `most` of the chains that another process had taken. Returns the number taken.
    #[cold]
    fn take_replayed(&mut self, access: DeviceAccess, most: usize, taken: &mut ChainBatch) -> usize {
        let mut count = 0;
        while count < most
            && !taken.is_spent()
            && self.replay.peek().is_some()
            && self.take_any(access, taken) == Ok(true)
        {
            count += 1;
        }
        count
    }

    /// Follows the next chain, a replayed one first, else one of the ring; returns `None` if none is available.
    fn walk(&mut self, access: DeviceAccess, taken: &mut ChainBatch) -> Result<Option<Chain>, Broken> {
        let size = self.size();
        let room = self.room();
        let start = taken.pieces.len();
        let indirect = self.has(INDIRECT_DESC);
        let mut walker = ChainWalker::new(&self.memory, &mut self.region_cache, access, size, indirect);
        let (mut pieces, mut slot) = (Pieces::default(), self.head);
        let replay = self.replay.peek().map(Vec::as_slice);
        for length in 1..=replay.map_or(room, |replay| replay.len() as u16) {
            let words = match replay {
                Some(replay) => replay[usize::from(length) - 1],
                None => read(&self.parts.ring[usize::from(slot.index)]),
            };
            let descriptor = Descriptor::packed(words);
            match replay.is_some() || descriptor.flags & OWNER_FLAGS == slot.available() {
                false if length == 1 => return Ok(None),
                false => return Err(Broken::IncompleteChain),
                true => {}
            }
            if self.log.is_some() {
                self.descriptors.push(words);
            }
            if descriptor.is(flags::INDIRECT) {
                walker.add_packed_table(descriptor, &mut pieces, &mut taken.pieces)?;
            } else {
                walker.add(descriptor, &mut pieces, &mut taken.pieces)?;
            }
            slot.advance(1, size);
            if !descriptor.is(flags::NEXT) {
                // The last descriptor holds the buffer's id (2.8.6).
                let id = descriptor.number;
                return match self.taken.get(usize::from(id)) {
                    None => Err(Broken::BadId(id)),
                    Some(0) => {
                        taken.charge(walker.read());
                        Ok(Some(pieces.into_chain(id, length, start, taken)))
                    }
                    Some(_) => Err(Broken::DuplicateId(id)),
                };
            }
        }
        Err(Broken::ChainTooLong)
    }

    /// Takes up to `most` chains.
    #[inline(always)]
    fn take_run(
        &mut self,
        access: DeviceAccess,
        most: u16,
        taken: &mut ChainBatch,
        prefetch: impl Fn(*const u8) + Copy,
    ) {
        let flags = if access == DeviceAccess::Write { flags::WRITE } else { 0 };
        let mut left = most;
        while left > 0 && !taken.is_spent() {
            let run = self.run(left);
            let len = run.len();
            let count = match self.log.take() {
                None => self.take_plain(self.setup.avx2, flags, run, &mut taken.chains, prefetch, |_, _| {}),
                Some(mut log) => {
                    let note = |id, words| log.take(id, &[words]);
                    let count = self.take_plain(None, flags, run, &mut taken.chains, prefetch, note);
                    log.commit_taken();
                    self.log = Some(log);
                    count
                }
            };
            taken.charge(count.into());
            left -= count;
            if len == usize::from(count) {
                continue;
            }
            if self.take_any(access, taken) != Ok(true) {
                break;
            }
            // The chain may have taken several slots.
            left = (left - 1).min(self.room());
        }
    }

    /// Takes up to `most` chains that the guest made available. Returns the number taken.
    #[inline(always)]
    fn take_new(&mut self, access: DeviceAccess, most: usize, taken: &mut ChainBatch) -> usize {
        let most = most.min(self.room().into()).min(taken.budget) as u16;
        if most == 0 || !self.ready() {
            return 0;
        }
        taken.chains.reserve(most.into());
        let before = taken.chains.len();
        self.prefetch(most, Access::Read);
        match access {
            DeviceAccess::Read => self.take_run(access, most, taken, |start| prefetch_frame(start, DeviceAccess::Read)),
            DeviceAccess::Write => {
                self.take_run(access, most, taken, |start| prefetch_frame(start, DeviceAccess::Write))
            }
        }
        let count = taken.chains.len() - before;
        self.replay.taken(count);
        count
    }

    fn set_suppression(&mut self, suppression: u32) {
        if self.suppression != suppression {
            self.suppression = suppression;
            self.parts.device_event[0].store(suppression, Ordering::Relaxed);
        }
    }

    /// Returns the saved position at which the queue continues: the next used slot.
    fn saved_position(setup: &VringConfig) -> Result<WrapIndex, Error> {
        let slot = |half: u32| WrapIndex { index: half as u16 & 0x7fff, wrap: half & 0x8000 != 0 };
        let (head, used) = (slot(setup.base), slot(setup.base >> 16));
        // Slots in between: nothing is known of chains that were taken and not given back, so they are taken
        // again. Some front-ends (DPDK) leave the upper half 0, which means that there are none.
        let size = u32::from(setup.size);
        let around = if head.wrap == used.wrap { 0 } else { size };
        let between = (around + u32::from(head.index)).checked_sub(used.index.into());
        match between {
            _ if head.index >= setup.size => {}
            _ if setup.base >> 16 == 0 => return Ok(head),
            Some(between) if used.index < setup.size && between <= size => return Ok(used),
            _ => {}
        }
        Err(Error::Config("a packed virtqueue whose positions are not in the ring, or too far apart"))
    }
}

const DISABLED: u32 = (event::DISABLE as u32) << 16;

impl CreateVirtqueue for Packed {
    fn new(setup: &VringConfig, memory: &Arc<GuestMemory>) -> Result<Self, Error> {
        if !(1..=MAX_SIZE).contains(&setup.size) {
            return Err(Error::Config("a packed virtqueue has 1 to 32768 descriptors"));
        }
        let parts = Parts::new(setup, memory)?;
        let mut log = None;
        let mut replay = Vec::new();
        let mut used = Self::saved_position(setup)?;
        if let Some(inflight) = &setup.inflight {
            let opened = PackedInflight::open(inflight, setup.size, &parts.ring, used)?;
            log = Some(opened.log);
            replay = opened.lost;
            used = opened.used;
        }
        let (mut head, mut held) = (used, 0);
        for _ in replay.iter().flatten() {
            // The other process may have written used descriptors that it did not publish; make these available
            // again.
            let word = &parts.ring[usize::from(head.index)][1];
            let kept = word.load(Ordering::Relaxed) & !(u64::from(OWNER_FLAGS) << 48);
            word.store(kept | u64::from(head.available()) << 48, Ordering::Relaxed);
            head.advance(1, setup.size);
            held += 1;
        }
        parts.device_event[0].store(DISABLED, Ordering::Relaxed);
        Ok(Self {
            setup: setup.clone(),
            memory: memory.clone(),
            region_cache: RegionCache::NONE,
            parts,
            taken: vec![0; setup.size.into()].into(),
            access: DeviceAccess::Read,
            head,
            used,
            held,
            unpublished: 0,
            first: None,
            suppression: DISABLED,
            broken: None,
            replay: InflightReplay::new(replay),
            log,
            descriptors: Vec::with_capacity(setup.size.into()),
        })
    }
}

// SAFETY: `ChainWalker` and `take_plain` hand out only pieces that `GuestMemory` or a `RegionCache` of it has
// found inside `memory`, which the queue keeps until it is dropped or `set_memory` replaces it.
unsafe impl Virtqueue for Packed {
    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), Error> {
        self.parts = Parts::new(&self.setup, memory)?;
        (self.memory, self.region_cache) = (memory.clone(), RegionCache::NONE);
        Ok(())
    }

    fn take(&mut self, access: DeviceAccess, most: usize, taken: &mut ChainBatch) -> Result<usize, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        self.access = access;
        let replay = if self.replay.peek().is_some() { self.take_replayed(access, most, taken) } else { 0 };
        let count = replay + if self.broken.is_none() { self.take_new(access, most - replay, taken) } else { 0 };
        match self.broken {
            Some(broken) if count == 0 => Err(broken),
            _ => Ok(count),
        }
    }

    fn put_back(&mut self, taken: &mut ChainBatch, n: usize) {
        for chain in taken.chains.drain(taken.chains.len().saturating_sub(n)..).rev() {
            self.unmark(chain.id);
            if !self.replay.put_back() {
                self.head.retreat(chain.descriptors, self.setup.size);
                self.held -= chain.descriptors;
                if let Some(log) = &mut self.log {
                    log.put_back(chain.id);
                }
            }
        }
    }

    #[inline(always)]
    fn push_used(&mut self, mut used: impl Iterator<Item = Used>) {
        if self.uses_batching() {
            return self.push_used_batch(used);
        }
        if self.first.is_none() {
            let Some(first) = used.next() else { return };
            self.push_first_used(first);
        }
        match self.log.take() {
            None => self.write_used(used, |_| {}),
            Some(mut log) => {
                self.write_used(used, |id| log.give(id));
                self.log = Some(log);
            }
        }
    }

    fn push_rest_unwritten(&mut self) {
        let rest: Vec<u16> = (0..self.setup.size).filter(|&id| self.taken[usize::from(id)] != 0).collect();
        self.push_used(rest.into_iter().map(|id| Used { id, descriptors: 1, written: 0 }));
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let Some((slot, word)) = self.first.take() else { return false };
        let unpublished = std::mem::take(&mut self.unpublished);
        if let Some(log) = &mut self.log {
            log.before_publish(self.used);
        }
        self.parts.ring[usize::from(slot.index)][1].store(word, Ordering::Release);
        if let Some(log) = &mut self.log {
            log.published();
        }
        // The guest writes its event suppression, then reads the descriptors; the device writes those, then
        // reads the event suppression. Each has a full fence in between, so at least one sees the other's
        // write.
        fence(Ordering::SeqCst);
        let suppression = self.parts.driver_event[0].load(Ordering::Relaxed);
        match (suppression >> 16) as u16 & 3 {
            event::DISABLE => false,
            event::DESCRIPTOR if self.has(EVENT_IDX) => {
                self.used.need_event(suppression as u16, unpublished, self.size())
            }
            _ => true,
        }
    }

    fn arm(&mut self) -> bool {
        self.set_suppression(if self.has(EVENT_IDX) {
            u32::from(self.head.with_wrap()) | u32::from(event::DESCRIPTOR) << 16
        } else {
            u32::from(event::ENABLE) << 16
        });
        // The guest writes a descriptor, then reads the event suppression; the device writes that here, then
        // reads the descriptors. Each has a full fence in between, so at least one sees the other's write.
        fence(Ordering::SeqCst);
        self.ready() || self.replay.peek().is_some()
    }

    fn disarm(&mut self) {
        self.set_suppression(DISABLED);
    }

    fn base(&self) -> u32 {
        u32::from(self.head.with_wrap()) | u32::from(self.used.with_wrap()) << 16
    }
}
