//! Packed rings (section 2.8): one ring of descriptors, which the guest makes available and the device marks as used, in
//! the same slots.

mod give;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ringpass_memory::Error;

use super::cells::Cells;
use super::chains::{Cell, Descriptor, Gather, Pieces, read};
use super::inflight::{Again, Lost, PackedLog};
use super::memory::Window;
use super::prefetch::{LINE, prefetch, prefetch_frame};
use super::{Access, Broken, Chain, GuestMemory, Piece, Setup, Taken, Used, Virtqueue};
use crate::features::{EVENT_IDX, INDIRECT_DESC};
use crate::layout::{MAX_SIZE, event, flags};
use crate::slot::Slot;

/// The device's side of a packed ring.
pub struct Packed {
    setup: Setup,
    memory: Arc<GuestMemory>,
    window: Window,
    parts: Parts,
    /// By the buffer's number: 1 if the device has it.
    taken: Box<[u8]>,
    /// What the queue's chains are for.
    access: Access,
    /// The next slot that the guest makes available, and the next one that is used.
    head: Slot,
    used: Slot,
    /// Slots between them, but for those that were given back and not shown yet; these.
    held: u16,
    fresh: u16,
    /// The first slot that was given back and not shown yet, and what will stand there. It shows the others, too.
    first: Option<(Slot, u64)>,
    /// What the device asks for, as it stands in its event suppression.
    asked: u32,
    broken: Option<Broken>,
    /// What another process had taken; and where it is noted for one to come, with the chain that is being taken.
    again: Again<Lost>,
    log: Option<PackedLog>,
    descriptors: Vec<[u64; 2]>,
}

/// Where the ring lies here.
struct Parts {
    ring: Cells<Cell>,
    /// Event suppression: offset and wrap bit, flags in the upper half.
    driver_event: Cells<AtomicU32>,
    device_event: Cells<AtomicU32>,
}

impl Parts {
    fn new(setup: &Setup, memory: &Arc<GuestMemory>) -> Result<Self, Error> {
        Ok(Self {
            ring: Cells::new(memory, setup.descriptors, setup.size.into(), 16)?,
            driver_event: Cells::new(memory, setup.driver, 1, 4)?,
            device_event: Cells::new(memory, setup.device, 1, 4)?,
        })
    }
}

/// The flags that say whose a descriptor is.
const WHOSE: u16 = flags::AVAIL | flags::USED;

impl Packed {
    fn has(&self, feature: u64) -> bool {
        self.setup.features & feature != 0
    }

    fn size(&self) -> u16 {
        self.setup.size
    }

    /// Slots that may be available.
    fn room(&self) -> u16 {
        self.size() - self.held - self.fresh
    }

    /// Whether the next descriptor is available.
    #[inline(always)]
    fn ready(&self) -> bool {
        let word = self.parts.ring[usize::from(self.head.index)][1].load(Ordering::Acquire);
        Descriptor::packed([0, word]).flags & WHOSE == self.head.available()
    }

    /// Up to `n` slots from the head on, as far as they are in one piece.
    #[inline(always)]
    fn run(&self, n: u16) -> std::ops::Range<usize> {
        let start = usize::from(self.head.index);
        start..(start + usize::from(n)).min(self.size().into())
    }

    /// Brings the lines of up to `n` slots from the head on into the cache.
    #[inline(always)]
    fn prefetch(&self, n: u16, access: Access) {
        let run = self.run(n);
        let lines = self.parts.ring[run].iter().step_by(LINE / size_of::<Cell>());
        lines.for_each(|line| prefetch(line, access));
    }

    /// Takes chains of one descriptor from slots as long as there is nothing special about them. Returns how many.
    #[inline(always)]
    fn take_plain(
        &mut self,
        flags: u16,
        run: std::ops::Range<usize>,
        chains: &mut Vec<Chain>,
        prefetch: impl Fn(*const u8),
        mut note: impl FnMut(u16, [u64; 2]),
    ) -> u16 {
        let flags = flags | self.head.available();
        // As locals: through `self` each would be loaded again for each packet.
        let Self { parts, taken, window, .. } = self;
        let (marks, window) = (&mut taken[..], *window);
        let mut count = 0;
        for (cell, place) in parts.ring[run].iter().zip(chains.spare_capacity_mut()) {
            let words = read(cell);
            let descriptor = Descriptor::packed(words);
            let id = descriptor.number;
            if descriptor.flags != flags {
                break;
            }
            let Some(mark) = marks.get_mut(usize::from(id)).filter(|mark| **mark == 0) else { break };
            let Some(start) = window.at(descriptor.address, descriptor.len) else { break };
            *mark = 1;
            prefetch(start.as_ptr());
            note(id, words);
            place.write(Chain { id, descriptors: 1, first: Piece { start, len: descriptor.len }, more: (0, 0) });
            count += 1;
        }
        self.head.advance(count, self.setup.size);
        self.held += count;
        // SAFETY: so many places were written.
        unsafe { chains.set_len(chains.len() + usize::from(count)) };
        count
    }

    /// Takes the next chain, whatever it is; `false` if none is available.
    #[inline(never)]
    fn take_any(&mut self, access: Access, taken: &mut Taken) -> Result<bool, Broken> {
        self.descriptors.clear();
        let pieces = taken.pieces.len();
        let chain = self.walk(access, taken).inspect_err(|_| taken.pieces.truncate(pieces));
        let Some(chain) = chain.map_err(|broken| *self.broken.insert(broken))? else { return Ok(false) };
        prefetch_frame(chain.first.start.as_ptr(), access);
        self.taken[usize::from(chain.id)] = 1;
        taken.chains.push(chain);
        if self.again.peek().is_some() {
            self.again.advance();
            return Ok(true);
        }
        self.head.advance(chain.descriptors, self.setup.size);
        self.held += chain.descriptors;
        if let Some(log) = &mut self.log {
            log.take(chain.id, &self.descriptors);
            log.took();
        }
        Ok(true)
    }

    /// Takes chains again that another process had, up to `most`. Returns how many.
    #[cold]
    fn take_again(&mut self, access: Access, most: usize, taken: &mut Taken) -> usize {
        let mut count = 0;
        while count < most
            && !taken.is_spent()
            && self.again.peek().is_some()
            && self.take_any(access, taken) == Ok(true)
        {
            count += 1;
        }
        count
    }

    /// Follows the next chain: of those that are to be taken again, else in the ring; `None` if none is available.
    fn walk(&mut self, access: Access, taken: &mut Taken) -> Result<Option<Chain>, Broken> {
        let (size, room, start) = (self.size(), self.room(), taken.pieces.len());
        let indirect = self.has(INDIRECT_DESC);
        let mut gather = Gather::new(&self.memory, &mut self.window, access, size, indirect);
        let (mut pieces, mut slot) = (Pieces::default(), self.head);
        let again = self.again.peek().map(Vec::as_slice);
        for length in 1..=again.map_or(room, |again| again.len() as u16) {
            let words = match again {
                Some(again) => again[usize::from(length) - 1],
                None => read(&self.parts.ring[usize::from(slot.index)]),
            };
            let descriptor = Descriptor::packed(words);
            match again.is_some() || descriptor.flags & WHOSE == slot.available() {
                false if length == 1 => return Ok(None),
                false => return Err(Broken::Part),
                true => {}
            }
            if self.log.is_some() {
                self.descriptors.push(words);
            }
            if descriptor.is(flags::INDIRECT) {
                gather.add_packed_table(descriptor, &mut pieces, &mut taken.pieces)?;
            } else {
                gather.add(descriptor, &mut pieces, &mut taken.pieces)?;
            }
            slot.advance(1, size);
            if !descriptor.is(flags::NEXT) {
                // The last one names the buffer (2.8.6).
                let id = descriptor.number;
                return match self.taken.get(usize::from(id)) {
                    None => Err(Broken::Id(id)),
                    Some(0) => {
                        taken.charge(gather.read());
                        Ok(Some(pieces.into_chain(id, length, start, taken)))
                    }
                    Some(_) => Err(Broken::Twice(id)),
                };
            }
        }
        Err(Broken::Long)
    }

    /// Takes up to `most` chains.
    #[inline(always)]
    fn take_run(&mut self, access: Access, most: u16, taken: &mut Taken, prefetch: impl Fn(*const u8) + Copy) {
        let flags = if access == Access::Write { flags::WRITE } else { 0 };
        let mut left = most;
        while left > 0 && !taken.is_spent() {
            let run = self.run(left);
            let len = run.len();
            let count = match self.log.take() {
                None => self.take_plain(flags, run, &mut taken.chains, prefetch, |_, _| {}),
                Some(mut log) => {
                    let note = |id, words| log.take(id, &[words]);
                    let count = self.take_plain(flags, run, &mut taken.chains, prefetch, note);
                    log.took();
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
            // It may have taken several slots.
            left = (left - 1).min(self.room());
        }
    }

    /// Takes chains that are available, up to `most`. Returns how many.
    #[inline(always)]
    fn take_new(&mut self, access: Access, most: usize, taken: &mut Taken) -> usize {
        let most = most.min(self.room().into()).min(taken.budget) as u16;
        if most == 0 || !self.ready() {
            return 0;
        }
        taken.chains.reserve(most.into());
        let before = taken.chains.len();
        self.prefetch(most, Access::Read);
        match access {
            Access::Read => self.take_run(access, most, taken, |start| prefetch_frame(start, Access::Read)),
            Access::Write => self.take_run(access, most, taken, |start| prefetch_frame(start, Access::Write)),
        }
        let count = taken.chains.len() - before;
        self.again.taken(count);
        count
    }

    fn ask(&mut self, asked: u32) {
        if self.asked != asked {
            self.asked = asked;
            self.parts.device_event[0].store(asked, Ordering::Relaxed);
        }
    }

    /// Where it stood when it was stopped: next available slot, next used one.
    fn stood(setup: &Setup) -> Result<Slot, Error> {
        let slot = |half: u32| Slot { index: half as u16 & 0x7fff, wrap: half & 0x8000 != 0 };
        let (head, used) = (slot(setup.base), slot(setup.base >> 16));
        // Slots between: of what was taken and not given back nothing is known, so that it is taken again. Some front-ends
        // (DPDK) leave the upper half 0, and mean that there are none.
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

// SAFETY: pieces were found in `memory`, which is kept.
unsafe impl Virtqueue for Packed {
    fn new(setup: &Setup, memory: &Arc<GuestMemory>) -> Result<Self, Error> {
        if !(1..=MAX_SIZE).contains(&setup.size) {
            return Err(Error::Config("a packed virtqueue has 1 to 32768 descriptors"));
        }
        let parts = Parts::new(setup, memory)?;
        let (mut log, mut again, mut used) = (None, Vec::new(), Self::stood(setup)?);
        if let Some(inflight) = &setup.inflight {
            let opened = PackedLog::open(inflight, setup.size, &parts.ring, used)?;
            (log, again, used) = (Some(opened.0), opened.1, opened.2);
        }
        let (mut head, mut held) = (used, 0);
        for _ in again.iter().flatten() {
            // That process may have written more than it showed.
            let word = &parts.ring[usize::from(head.index)][1];
            let kept = word.load(Ordering::Relaxed) & !(u64::from(WHOSE) << 48);
            word.store(kept | u64::from(head.available()) << 48, Ordering::Relaxed);
            head.advance(1, setup.size);
            held += 1;
        }
        parts.device_event[0].store(DISABLED, Ordering::Relaxed);
        Ok(Self {
            setup: setup.clone(),
            memory: memory.clone(),
            window: Window::NONE,
            parts,
            taken: vec![0; setup.size.into()].into(),
            access: Access::Read,
            head,
            used,
            held,
            fresh: 0,
            first: None,
            asked: DISABLED,
            broken: None,
            again: Again::new(again),
            log,
            descriptors: Vec::with_capacity(setup.size.into()),
        })
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), Error> {
        self.parts = Parts::new(&self.setup, memory)?;
        (self.memory, self.window) = (memory.clone(), Window::NONE);
        Ok(())
    }

    fn take(&mut self, access: Access, most: usize, taken: &mut Taken) -> Result<usize, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        self.access = access;
        let again = if self.again.peek().is_some() { self.take_again(access, most, taken) } else { 0 };
        let count = again + if self.broken.is_none() { self.take_new(access, most - again, taken) } else { 0 };
        match self.broken {
            Some(broken) if count == 0 => Err(broken),
            _ => Ok(count),
        }
    }

    fn put_back(&mut self, taken: &mut Taken, n: usize) {
        for chain in taken.chains.drain(taken.chains.len().saturating_sub(n)..).rev() {
            self.unmark(chain.id);
            if !self.again.put_back() {
                self.head.retreat(chain.descriptors, self.setup.size);
                self.held -= chain.descriptors;
                if let Some(log) = &mut self.log {
                    log.put_back(chain.id);
                }
            }
        }
    }

    #[inline(always)]
    fn give_all(&mut self, mut used: impl Iterator<Item = Used>) {
        if self.names_the_last() {
            return self.give_by_last(used);
        }
        if self.first.is_none() {
            let Some(first) = used.next() else { return };
            self.give_first(first);
        }
        match self.log.take() {
            None => self.write_used(used, |_| {}),
            Some(mut log) => {
                self.write_used(used, |id| log.give(id));
                self.log = Some(log);
            }
        }
    }

    fn give_rest(&mut self) {
        let rest: Vec<u16> = (0..self.setup.size).filter(|&id| self.taken[usize::from(id)] != 0).collect();
        self.give_all(rest.into_iter().map(|id| Used { id, descriptors: 1, written: 0 }));
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let Some((slot, word)) = self.first.take() else { return false };
        let fresh = std::mem::take(&mut self.fresh);
        if let Some(log) = &mut self.log {
            log.showing(self.used);
        }
        self.parts.ring[usize::from(slot.index)][1].store(word, Ordering::Release);
        if let Some(log) = &mut self.log {
            log.shown();
        }
        // The guest writes what it wants, then looks at the descriptors; we write those, then look at what it wants.
        fence(Ordering::SeqCst);
        let asked = self.parts.driver_event[0].load(Ordering::Relaxed);
        match (asked >> 16) as u16 & 3 {
            event::DISABLE => false,
            event::DESCRIPTOR if self.has(EVENT_IDX) => self.used.passed(asked as u16, fresh, self.size()),
            _ => true,
        }
    }

    fn arm(&mut self) -> bool {
        self.ask(if self.has(EVENT_IDX) {
            u32::from(self.head.with_wrap()) | u32::from(event::DESCRIPTOR) << 16
        } else {
            u32::from(event::ENABLE) << 16
        });
        // The guest marks a descriptor, then looks here; we write here, then look at the descriptors.
        fence(Ordering::SeqCst);
        self.ready() || self.again.peek().is_some()
    }

    fn disarm(&mut self) {
        self.ask(DISABLED);
    }

    fn base(&self) -> u32 {
        u32::from(self.head.with_wrap()) | u32::from(self.used.with_wrap()) << 16
    }
}
