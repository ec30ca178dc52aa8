//! Split rings (section 2.7): a table of descriptors, a ring of available ones and a ring of used ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use ringpass_memory::{Access, Error, prefetch};

use super::cells::SharedArray;
use super::chains::{ChainWalker, Descriptor, Pieces, RawDescriptor, read};
use super::inflight::{InflightReplay, SplitInflight};
use super::marks::unmark_all;
use super::memory::RegionCache;
use super::prefetch::{LINE, prefetch_frame};
use super::vector::{self, Taking};
use super::{
    Broken, Chain, ChainBatch, CreateVirtqueue, DeviceAccess, GuestMemory, Piece, Used, Virtqueue, VringConfig,
};
use crate::features::{EVENT_IDX, IN_ORDER, INDIRECT_DESC};
use crate::layout::{MAX_SIZE, NO_NOTIFY, flags};

/// The device's side of a split ring.
pub struct Split {
    setup: VringConfig,
    memory: Arc<GuestMemory>,
    region_cache: RegionCache,
    parts: Parts,
    /// Whether the device has the chain that begins with a descriptor (1 or 0), by descriptor number.
    taken: Box<[u8]>,
    /// Direction of the queue's chains.
    access: DeviceAccess,
    /// Number of chains taken. This counter and the following ones wrap, as the ring's own indices do.
    head: u16,
    /// Number of chains made available, as last read from the guest.
    seen: u16,
    /// Number of chains whose descriptors were prefetched.
    ahead: u16,
    /// Number of chains given back.
    used: u16,
    /// Number of chains published to the guest as used.
    published: u16,
    /// Head of the chain that was given back last.
    last: u16,
    /// The last value that the device wrote to ask for notifications, or for none.
    suppression: u16,
    /// Whether notifications are enabled.
    armed: bool,
    broken: Option<Broken>,
    /// Chains that another process had taken, by their heads.
    replay: InflightReplay<u16>,
    /// The inflight region, which records chains for a later process.
    log: Option<SplitInflight>,
}

/// The parts of the ring, in this process's memory.
struct Parts {
    descriptors: SharedArray<RawDescriptor>,
    /// Flags and index of the available ring.
    available_head: SharedArray<AtomicU16>,
    available: SharedArray<AtomicU16>,
    /// The field after the available ring: the used index at which the guest wants an interrupt.
    interrupt_at: SharedArray<AtomicU16>,
    used_head: SharedArray<AtomicU16>,
    /// Entries of the used ring: descriptor number, bytes written.
    used: SharedArray<[AtomicU32; 2]>,
    /// The available index at which the device wants a notification.
    notify_at: SharedArray<AtomicU16>,
}

/// Positions in the heads of both rings, in units of 16 bits.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const HEAD: usize = 2;

impl Parts {
    fn new(setup: &VringConfig, memory: &Arc<GuestMemory>) -> Result<Self, Error> {
        let size = usize::from(setup.size);
        let driver = setup.driver;
        let device = setup.device;
        let behind = |start: u64, bytes: usize| {
            start.checked_add(bytes as u64).ok_or(Error::Config("a ring at the end of all addresses"))
        };
        Ok(Self {
            descriptors: SharedArray::new(memory, setup.descriptors, size, 16)?,
            available_head: SharedArray::new(memory, driver, HEAD, 2)?,
            available: SharedArray::new(memory, behind(driver, 4)?, size, 2)?,
            interrupt_at: SharedArray::new(memory, behind(driver, 4 + 2 * size)?, 1, 2)?,
            used_head: SharedArray::new(memory, device, HEAD, 4)?,
            used: SharedArray::new(memory, behind(device, 4)?, size, 4)?,
            notify_at: SharedArray::new(memory, behind(device, 4 + 8 * size)?, 1, 2)?,
        })
    }
}

impl Split {
    fn has(&self, feature: u64) -> bool {
        self.setup.features & feature != 0
    }

    /// Returns the number of available chains. It is read from the guest only if fewer than `most` are known.
    #[inline(always)]
    fn ready(&mut self, most: usize) -> Result<u16, Broken> {
        let mut ready = self.seen.wrapping_sub(self.head);
        if usize::from(ready) < most {
            self.seen = self.parts.available_head[INDEX].load(Ordering::Acquire);
            ready = self.seen.wrapping_sub(self.head);
        }
        // The guest cannot make available what was not returned to it.
        if ready > self.setup.size - self.head.wrapping_sub(self.published).min(self.setup.size) {
            return Err(self.fail(Broken::IndexJump(ready)));
        }
        Ok(ready)
    }

    #[cold]
    fn fail(&mut self, broken: Broken) -> Broken {
        *self.broken.insert(broken)
    }

    /// Prefetches the descriptors of `n` chains and of as many after them, unless that was done before, and the
    /// used entries of the `n`.
    #[inline(always)]
    fn prefetch(&mut self, n: u16, ready: u16) {
        const DESCRIPTORS: usize = LINE / size_of::<RawDescriptor>();
        let end = self.head.wrapping_add(ready.min(2 * n));
        if (end.wrapping_sub(self.ahead) as i16) > 0 {
            let count = end.wrapping_sub(self.ahead).min(ready);
            for i in (0..count).step_by(DESCRIPTORS) {
                // Descriptors are mostly adjacent, so one prefetch covers several chains.
                let id = self.parts.available.at(end.wrapping_sub(count).wrapping_add(i)).load(Ordering::Relaxed);
                prefetch(self.parts.descriptors.at(id), Access::Read);
            }
            self.ahead = end;
        }
        const ENTRIES: usize = LINE / 8;
        for i in (0..n).step_by(ENTRIES) {
            prefetch(self.parts.used.at(self.used.wrapping_add(i)), Access::ReadWrite);
        }
    }

    /// Returns up to `n` positions of the rings from a counter on, without wrapping.
    #[inline(always)]
    fn run(&self, counter: u16, n: u16) -> std::ops::Range<usize> {
        let start = usize::from(counter & (self.setup.size - 1));
        start..(start + usize::from(n)).min(self.setup.size.into())
    }

    /// Takes chains of one descriptor each from a run of the available ring, and stops at the first chain that
    /// is not plain. Returns the number taken.
    #[inline(always)]
    fn take_plain(
        &mut self,
        flags: u16,
        run: std::ops::Range<usize>,
        chains: &mut Vec<Chain>,
        prefetch: impl Fn(*const u8),
    ) -> u16 {
        // Kept in locals: through `self`, each would be loaded again for each packet.
        let Self { parts, taken, region_cache, .. } = self;
        let descriptors = &parts.descriptors[..];
        let marks = &mut taken[..];
        let region_cache = *region_cache;
        let (available, places) = (&parts.available[run], chains.spare_capacity_mut());
        let mut count = self.setup.avx2.map_or(0, |avx2| {
            let to = Taking { flags, marks, region: region_cache, places, prefetch: &prefetch };
            // SAFETY: the processor has AVX2, as `avx2` proves.
            unsafe { vector::take_split(avx2, available, descriptors, to) }
        });
        for (entry, place) in available[count..].iter().zip(&mut places[count..]) {
            let id = entry.load(Ordering::Relaxed);
            let Some(mark) = marks.get_mut(usize::from(id)) else { break };
            let Some(cell) = descriptors.get(usize::from(id)) else { break };
            let descriptor = Descriptor::split(read(cell));
            if descriptor.flags != flags || *mark != 0 {
                break;
            }
            let Some(start) = region_cache.at(descriptor.address, descriptor.len) else { break };
            *mark = 1;
            prefetch(start.as_ptr());
            place.write(Chain { id, descriptors: 1, first: Piece { start, len: descriptor.len }, more: (0, 0) });
            count += 1;
        }
        // SAFETY: the loops have written `count` elements of the spare capacity, from its start on.
        unsafe { chains.set_len(chains.len() + count) };
        self.head = self.head.wrapping_add(count as u16);
        count as u16
    }

    /// Takes the next chain, of any kind.
    #[inline(never)]
    fn take_any(&mut self, access: DeviceAccess, taken: &mut ChainBatch) -> Result<(), Broken> {
        let replay = self.replay.peek().copied();
        let id = replay.unwrap_or_else(|| self.parts.available.at(self.head).load(Ordering::Relaxed));
        let pieces = taken.pieces.len();
        let chain = self.walk(id, access, taken).inspect_err(|_| taken.pieces.truncate(pieces));
        let chain = chain.map_err(|broken| self.fail(broken))?;
        prefetch_frame(chain.first.start.as_ptr(), access);
        taken.chains.push(chain);
        if replay.is_some() {
            self.replay.advance();
            return Ok(());
        }
        self.head = self.head.wrapping_add(1);
        if let Some(log) = &mut self.log {
            log.take(id);
        }
        Ok(())
    }

    /// Takes up to `most` of the chains that another process had taken. Returns the number taken.
    #[cold]
    fn take_replayed(&mut self, access: DeviceAccess, most: usize, taken: &mut ChainBatch) -> usize {
        let mut count = 0;
        while count < most && !taken.is_spent() && self.replay.peek().is_some() && self.take_any(access, taken).is_ok()
        {
            count += 1;
        }
        count
    }

    /// Returns the position of the next chain, and the number of chains that were available when the guest's index was last read. Reads nothing of the guest's.
    pub fn position(&self) -> (u16, u16) {
        (self.head & (self.setup.size - 1), self.seen.wrapping_sub(self.head).min(self.setup.size))
    }

    /// Follows the chain that begins with descriptor `id`.
    fn walk(&mut self, id: u16, access: DeviceAccess, taken: &mut ChainBatch) -> Result<Chain, Broken> {
        let size = self.setup.size;
        match self.taken.get(usize::from(id)) {
            None => return Err(Broken::BadId(id)),
            Some(0) => {}
            Some(_) => return Err(Broken::DuplicateId(id)),
        }
        let (start, indirect) = (taken.pieces.len(), self.has(INDIRECT_DESC));
        let mut walker = ChainWalker::new(&self.memory, &mut self.region_cache, access, size, indirect);
        let (mut pieces, mut next) = (Pieces::default(), id);
        for length in 1..=size {
            let descriptor = Descriptor::split(read(self.parts.descriptors.at(next)));
            if descriptor.is(flags::INDIRECT) {
                walker.add_split_table(descriptor, &mut pieces, &mut taken.pieces)?;
            } else {
                walker.add(descriptor, &mut pieces, &mut taken.pieces)?;
            }
            if !descriptor.is(flags::NEXT) {
                self.taken[usize::from(id)] = 1;
                taken.charge(walker.read());
                return Ok(pieces.into_chain(id, length, start, taken));
            }
            next = descriptor.number;
            if next >= size {
                return Err(Broken::BadNext(next));
            }
        }
        Err(Broken::ChainTooLong)
    }

    /// Records that the device no longer has a chain.
    fn unmark(&mut self, id: u16) {
        if let Some(mark) = self.taken.get_mut(usize::from(id)) {
            *mark = 0;
        }
    }

    /// Takes up to `n` chains, which are available. Returns the number taken.
    #[inline(always)]
    fn take_run(
        &mut self,
        access: DeviceAccess,
        n: u16,
        taken: &mut ChainBatch,
        prefetch: impl Fn(*const u8) + Copy,
    ) -> usize {
        let flags = if access == DeviceAccess::Write { flags::WRITE } else { 0 };
        let mut left = n;
        while left > 0 && !taken.is_spent() {
            let (run, before) = (self.run(self.head, left), taken.chains.len());
            let (len, count) = (run.len(), self.take_plain(flags, run, &mut taken.chains, prefetch));
            if let Some(log) = &mut self.log {
                taken.chains[before..].iter().for_each(|chain| log.take(chain.id));
            }
            taken.charge(count.into());
            left -= count;
            if len == usize::from(count) {
                continue;
            }
            if self.take_any(access, taken).is_err() {
                break;
            }
            left -= 1;
        }
        (n - left).into()
    }

    /// Takes up to `most` chains that the guest made available. Returns the number taken.
    #[inline(always)]
    fn take_new(&mut self, access: DeviceAccess, most: usize, taken: &mut ChainBatch) -> usize {
        let Ok(ready) = self.ready(most) else { return 0 };
        let n = most.min(ready.into()).min(taken.budget) as u16;
        if n == 0 {
            return 0;
        }
        taken.chains.reserve(n.into());
        self.prefetch(n, ready);
        let count = match access {
            DeviceAccess::Read => self.take_run(access, n, taken, |start| prefetch_frame(start, DeviceAccess::Read)),
            DeviceAccess::Write => self.take_run(access, n, taken, |start| prefetch_frame(start, DeviceAccess::Write)),
        };
        self.replay.taken(count);
        count
    }

    /// Writes used entries, and passes the id of each to `note`.
    #[inline(always)]
    fn write_used(&mut self, mut used: impl Iterator<Item = Used>, mut note: impl FnMut(u16)) {
        loop {
            let run = self.run(self.used, self.setup.size);
            let (len, mut count) = (run.len() as u16, 0);
            let marks = &mut self.taken[..];
            for (entry, Used { id, written, .. }) in self.parts.used[run].iter().zip(&mut used) {
                if let Some(mark) = marks.get_mut(usize::from(id)) {
                    *mark = 0;
                }
                entry[0].store(id.into(), Ordering::Relaxed);
                entry[1].store(written, Ordering::Relaxed);
                note(id);
                count += 1;
            }
            self.used = self.used.wrapping_add(count);
            if count < len {
                break;
            }
        }
    }

    /// Gives back a batch of chains by the id of the last.
    #[inline(always)]
    fn push_used_batch(&mut self, used: impl Iterator<Item = Used>) {
        // Each takes one position in the used ring.
        let used = used.map(|used| Used { descriptors: 1, ..used });
        let Self { taken, log, .. } = self;
        let (count, last) = match log {
            None => unmark_all(taken, used, |_| {}),
            Some(log) => unmark_all(taken, used, |id| log.give(id)),
        };
        if let Some(last) = last {
            (self.used, self.last) = (self.used.wrapping_add(count), last.id);
        }
    }

    /// Returns whether a batch of chains is given back by the id of the last: with IN_ORDER, for chains that
    /// the device reads (2.7.9).
    #[inline(always)]
    fn uses_batching(&self) -> bool {
        self.access == DeviceAccess::Read && self.has(IN_ORDER)
    }

    /// Writes the event index (2.7.10) or the notification flag (2.7.8), unless it has that value already.
    fn set_suppression(&mut self, suppression: u16) {
        if self.suppression != suppression {
            self.suppression = suppression;
            let place = if self.has(EVENT_IDX) { &self.parts.notify_at[0] } else { &self.parts.used_head[FLAGS] };
            place.store(suppression, Ordering::Relaxed);
        }
    }

    /// Returns the value that disables notifications. With the event index, that is the index farthest away.
    fn suppressed(&self) -> u16 {
        if self.has(EVENT_IDX) { self.head.wrapping_sub(1) } else { NO_NOTIFY }
    }
}

impl CreateVirtqueue for Split {
    fn new(setup: &VringConfig, memory: &Arc<GuestMemory>) -> Result<Self, Error> {
        if !setup.size.is_power_of_two() || setup.size > MAX_SIZE {
            return Err(Error::Config("a split virtqueue has a power of two of descriptors, up to 32768"));
        }
        let parts = Parts::new(setup, memory)?;
        // Chains that were taken and not given back are known from the inflight region. Without one, the queue
        // continues at the used index, and the guest's chains are taken again.
        let used = parts.used_head[INDEX].load(Ordering::Acquire);
        let log =
            setup.inflight.as_ref().map(|inflight| SplitInflight::open(inflight, setup.size, used)).transpose()?;
        let (log, replay) = log.map_or((None, Vec::new()), |(log, replay)| (Some(log), replay));
        let head = used.wrapping_add(replay.len() as u16);
        let mut queue = Self {
            setup: setup.clone(),
            memory: memory.clone(),
            region_cache: RegionCache::NONE,
            parts,
            taken: vec![0; setup.size.into()].into(),
            access: DeviceAccess::Read,
            head,
            seen: head,
            ahead: head,
            used,
            published: used,
            last: 0,
            suppression: 0,
            armed: false,
            broken: None,
            replay: InflightReplay::new(replay),
            log,
        };
        queue.suppression = queue.suppressed();
        queue.parts.used_head[FLAGS].store(if queue.has(EVENT_IDX) { 0 } else { NO_NOTIFY }, Ordering::Relaxed);
        queue.parts.notify_at[0].store(queue.suppression, Ordering::Relaxed);
        Ok(queue)
    }
}

// SAFETY: `ChainWalker` and `take_plain` hand out only pieces that `GuestMemory` or a `RegionCache` of it has
// found inside `memory`, which the queue keeps until it is dropped or `set_memory` replaces it.
unsafe impl Virtqueue for Split {
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
                self.head = self.head.wrapping_sub(1);
                if let Some(log) = &self.log {
                    log.put_back(chain.id);
                }
            }
        }
    }

    #[inline(always)]
    fn push_used(&mut self, used: impl Iterator<Item = Used>) {
        if self.uses_batching() {
            return self.push_used_batch(used);
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
        if self.used == self.published {
            return false;
        }
        let before = std::mem::replace(&mut self.published, self.used);
        if self.uses_batching() {
            let entry = self.parts.used.at(before);
            entry[0].store(self.last.into(), Ordering::Relaxed);
            entry[1].store(0, Ordering::Relaxed);
        }
        if let Some(log) = &self.log {
            log.before_publish();
        }
        self.parts.used_head[INDEX].store(self.used, Ordering::Release);
        if let Some(log) = &mut self.log {
            log.published(self.used);
        }
        // The guest writes the index at which it wants an interrupt (or the flags), then reads the used index;
        // the device writes the used index, then reads that. Each has a full fence in between, so at least one
        // sees the other's write.
        fence(Ordering::SeqCst);
        if self.has(EVENT_IDX) {
            let at = self.parts.interrupt_at[0].load(Ordering::Relaxed);
            return crate::slot::need_event(at, before, self.used);
        }
        let wanted = self.parts.available_head[FLAGS].load(Ordering::Relaxed) & NO_NOTIFY == 0;
        // The cache line of the index has just been loaded, so reading it is cheap.
        self.seen = self.parts.available_head[INDEX].load(Ordering::Acquire);
        wanted
    }

    fn arm(&mut self) -> bool {
        self.set_suppression(if self.has(EVENT_IDX) { self.head } else { 0 });
        self.armed = true;
        // The guest writes its index, then reads the event index or flags; the device has written those, and
        // reads the guest's index now. Each has a full fence in between, so at least one sees the other's
        // write.
        fence(Ordering::SeqCst);
        self.parts.available_head[INDEX].load(Ordering::Acquire) != self.head || self.replay.peek().is_some()
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.set_suppression(self.suppressed());
        }
    }

    fn base(&self) -> u32 {
        self.head.into()
    }
}
