//! Split rings (section 2.7): a table of descriptors, a ring of those that are available, a ring of those that are used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use ringpass_memory::Error;

use super::cells::Cells;
use super::chains::{Cell, Descriptor, Gather, Pieces, read};
use super::inflight::{Again, SplitLog};
use super::marks::unmark_all;
use super::memory::Window;
use super::prefetch::{LINE, prefetch, prefetch_frame};
use super::{Access, Broken, Chain, GuestMemory, Piece, Setup, Taken, Used, Virtqueue};
use crate::features::{EVENT_IDX, IN_ORDER, INDIRECT_DESC};
use crate::layout::{MAX_SIZE, NO_NOTICE, flags};

/// The device's side of a split ring.
pub struct Split {
    setup: Setup,
    memory: Arc<GuestMemory>,
    window: Window,
    parts: Parts,
    /// By descriptor: 1 if the device has a chain that begins with it.
    taken: Box<[u8]>,
    /// What the queue's chains are for.
    access: Access,
    /// Chains taken; made available, as far as was seen; and prefetched. These wrap, as the ring's own indices.
    head: u16,
    seen: u16,
    ahead: u16,
    /// Chains given back, and shown to the guest.
    used: u16,
    shown: u16,
    /// The last one that was given back.
    last: u16,
    /// What the device asks for, as it stands in the ring; and whether it is to be notified.
    asked: u16,
    armed: bool,
    broken: Option<Broken>,
    /// What another process had taken, by the heads; and where it is noted for one to come.
    again: Again<u16>,
    log: Option<SplitLog>,
}

/// Where the ring lies here.
struct Parts {
    descriptors: Cells<Cell>,
    /// Flags and index of the available ring.
    available_head: Cells<AtomicU16>,
    available: Cells<AtomicU16>,
    /// Behind it: at which used index the guest wants an interrupt.
    interrupt_at: Cells<AtomicU16>,
    used_head: Cells<AtomicU16>,
    /// Entries: descriptor, bytes written.
    used: Cells<[AtomicU32; 2]>,
    /// At which available index the device wants a notification.
    notify_at: Cells<AtomicU16>,
}

/// In the heads of both rings, in units of 16 bits.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const HEAD: usize = 2;

impl Parts {
    fn new(setup: &Setup, memory: &Arc<GuestMemory>) -> Result<Self, Error> {
        let (size, driver, device) = (usize::from(setup.size), setup.driver, setup.device);
        let behind = |start: u64, bytes: usize| {
            start.checked_add(bytes as u64).ok_or(Error::Config("a ring at the end of all addresses"))
        };
        Ok(Self {
            descriptors: Cells::new(memory, setup.descriptors, size, 16)?,
            available_head: Cells::new(memory, driver, HEAD, 2)?,
            available: Cells::new(memory, behind(driver, 4)?, size, 2)?,
            interrupt_at: Cells::new(memory, behind(driver, 4 + 2 * size)?, 1, 2)?,
            used_head: Cells::new(memory, device, HEAD, 4)?,
            used: Cells::new(memory, behind(device, 4)?, size, 4)?,
            notify_at: Cells::new(memory, behind(device, 4 + 8 * size)?, 1, 2)?,
        })
    }
}

impl Split {
    fn has(&self, feature: u64) -> bool {
        self.setup.features & feature != 0
    }

    /// Chains that are available, up to `most` or a few more.
    #[inline(always)]
    fn ready(&mut self, most: usize) -> Result<u16, Broken> {
        let mut ready = self.seen.wrapping_sub(self.head);
        if usize::from(ready) < most {
            self.seen = self.parts.available_head[INDEX].load(Ordering::Acquire);
            ready = self.seen.wrapping_sub(self.head);
        }
        // What the guest has not got back it cannot make available.
        if ready > self.setup.size - self.head.wrapping_sub(self.shown).min(self.setup.size) {
            return Err(self.fail(Broken::Jump(ready)));
        }
        Ok(ready)
    }

    #[cold]
    fn fail(&mut self, broken: Broken) -> Broken {
        *self.broken.insert(broken)
    }

    /// Brings descriptors into the cache that are not on their way: those of `n` chains and of as many behind them; and
    /// the used entries of the `n`.
    #[inline(always)]
    fn prefetch(&mut self, n: u16, ready: u16) {
        const DESCRIPTORS: usize = LINE / size_of::<Cell>();
        let end = self.head.wrapping_add(ready.min(2 * n));
        if (end.wrapping_sub(self.ahead) as i16) > 0 {
            let count = end.wrapping_sub(self.ahead).min(ready);
            for i in (0..count).step_by(DESCRIPTORS) {
                // Mostly they follow each other.
                let id = self.parts.available.at(end.wrapping_sub(count).wrapping_add(i)).load(Ordering::Relaxed);
                prefetch(self.parts.descriptors.at(id), Access::Read);
            }
            self.ahead = end;
        }
        const ENTRIES: usize = LINE / 8;
        for i in (0..n).step_by(ENTRIES) {
            prefetch(self.parts.used.at(self.used.wrapping_add(i)), Access::Write);
        }
    }

    /// Up to `n` places of the rings from a counter on, as far as they are in one piece.
    #[inline(always)]
    fn run(&self, counter: u16, n: u16) -> std::ops::Range<usize> {
        let start = usize::from(counter & (self.setup.size - 1));
        start..(start + usize::from(n)).min(self.setup.size.into())
    }

    /// Takes chains of one descriptor from places of the available ring as long as there is nothing special about them.
    /// Returns how many.
    #[inline(always)]
    fn take_plain(
        &mut self,
        flags: u16,
        run: std::ops::Range<usize>,
        chains: &mut Vec<Chain>,
        prefetch: impl Fn(*const u8),
    ) -> u16 {
        // As locals: through `self` each would be loaded again for each packet.
        let Self { parts, taken, window, .. } = self;
        let (descriptors, marks, window) = (&parts.descriptors[..], &mut taken[..], *window);
        let mut count = 0;
        for (entry, place) in parts.available[run].iter().zip(chains.spare_capacity_mut()) {
            let id = entry.load(Ordering::Relaxed);
            let Some(mark) = marks.get_mut(usize::from(id)) else { break };
            let Some(cell) = descriptors.get(usize::from(id)) else { break };
            let descriptor = Descriptor::split(read(cell));
            if descriptor.flags != flags || *mark != 0 {
                break;
            }
            let Some(start) = window.at(descriptor.address, descriptor.len) else { break };
            *mark = 1;
            prefetch(start.as_ptr());
            place.write(Chain { id, descriptors: 1, first: Piece { start, len: descriptor.len }, more: (0, 0) });
            count += 1;
        }
        self.head = self.head.wrapping_add(count);
        // SAFETY: so many places were written.
        unsafe { chains.set_len(chains.len() + usize::from(count)) };
        count
    }

    /// Takes the next chain, whatever it is.
    #[inline(never)]
    fn take_any(&mut self, access: Access, taken: &mut Taken) -> Result<(), Broken> {
        let again = self.again.peek().copied();
        let id = again.unwrap_or_else(|| self.parts.available.at(self.head).load(Ordering::Relaxed));
        let pieces = taken.pieces.len();
        let chain = self.walk(id, access, taken).inspect_err(|_| taken.pieces.truncate(pieces));
        let chain = chain.map_err(|broken| self.fail(broken))?;
        prefetch_frame(chain.first.start.as_ptr(), access);
        taken.chains.push(chain);
        if again.is_some() {
            self.again.advance();
            return Ok(());
        }
        self.head = self.head.wrapping_add(1);
        if let Some(log) = &mut self.log {
            log.take(id);
        }
        Ok(())
    }

    /// Takes chains again that another process had, up to `most`. Returns how many.
    #[cold]
    fn take_again(&mut self, access: Access, most: usize, taken: &mut Taken) -> usize {
        let mut count = 0;
        while count < most && !taken.is_spent() && self.again.peek().is_some() && self.take_any(access, taken).is_ok() {
            count += 1;
        }
        count
    }

    /// Follows a chain.
    fn walk(&mut self, id: u16, access: Access, taken: &mut Taken) -> Result<Chain, Broken> {
        let size = self.setup.size;
        match self.taken.get(usize::from(id)) {
            None => return Err(Broken::Id(id)),
            Some(0) => {}
            Some(_) => return Err(Broken::Twice(id)),
        }
        let (start, indirect) = (taken.pieces.len(), self.has(INDIRECT_DESC));
        let mut gather = Gather::new(&self.memory, &mut self.window, access, size, indirect);
        let (mut pieces, mut next) = (Pieces::default(), id);
        for length in 1..=size {
            let descriptor = Descriptor::split(read(self.parts.descriptors.at(next)));
            if descriptor.is(flags::INDIRECT) {
                gather.add_split_table(descriptor, &mut pieces, &mut taken.pieces)?;
            } else {
                gather.add(descriptor, &mut pieces, &mut taken.pieces)?;
            }
            if !descriptor.is(flags::NEXT) {
                self.taken[usize::from(id)] = 1;
                taken.charge(gather.read());
                return Ok(pieces.into_chain(id, length, start, taken));
            }
            next = descriptor.number;
            if next >= size {
                return Err(Broken::Next(next));
            }
        }
        Err(Broken::Long)
    }

    /// The device no longer has a chain.
    fn unmark(&mut self, id: u16) {
        if let Some(mark) = self.taken.get_mut(usize::from(id)) {
            *mark = 0;
        }
    }

    /// Takes `n` chains.
    #[inline(always)]
    fn take_run(&mut self, access: Access, n: u16, taken: &mut Taken, prefetch: impl Fn(*const u8) + Copy) -> usize {
        let flags = if access == Access::Write { flags::WRITE } else { 0 };
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

    /// Takes chains that are available, up to `most`. Returns how many.
    #[inline(always)]
    fn take_new(&mut self, access: Access, most: usize, taken: &mut Taken) -> usize {
        let Ok(ready) = self.ready(most) else { return 0 };
        let n = most.min(ready.into()).min(taken.budget) as u16;
        if n == 0 {
            return 0;
        }
        taken.chains.reserve(n.into());
        self.prefetch(n, ready);
        let count = match access {
            Access::Read => self.take_run(access, n, taken, |start| prefetch_frame(start, Access::Read)),
            Access::Write => self.take_run(access, n, taken, |start| prefetch_frame(start, Access::Write)),
        };
        self.again.taken(count);
        count
    }

    /// Gives chains back, and has each noted.
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

    /// Gives chains back that go by the name of the last.
    #[inline(always)]
    fn give_by_last(&mut self, used: impl Iterator<Item = Used>) {
        // Each takes one place in the used ring.
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

    /// Whether a batch of chains goes by the name of the last: in order, of those that were read (2.7.9).
    #[inline(always)]
    fn names_the_last(&self) -> bool {
        self.access == Access::Read && self.has(IN_ORDER)
    }

    /// Writes at which index a notification is wanted, or whether (2.7.10, 2.7.8), unless that stands there.
    fn ask(&mut self, asked: u16) {
        if self.asked != asked {
            self.asked = asked;
            let place = if self.has(EVENT_IDX) { &self.parts.notify_at[0] } else { &self.parts.used_head[FLAGS] };
            place.store(asked, Ordering::Relaxed);
        }
    }

    /// What asks for none: with the event index, the one that is farthest away.
    fn unwanted(&self) -> u16 {
        if self.has(EVENT_IDX) { self.head.wrapping_sub(1) } else { NO_NOTICE }
    }
}

// SAFETY: pieces were found in `memory`, which is kept.
unsafe impl Virtqueue for Split {
    fn new(setup: &Setup, memory: &Arc<GuestMemory>) -> Result<Self, Error> {
        if !setup.size.is_power_of_two() || setup.size > MAX_SIZE {
            return Err(Error::Config("a split virtqueue has a power of two of descriptors, up to 32768"));
        }
        let parts = Parts::new(setup, memory)?;
        // What was taken and not given back is known from the log; or it is taken again, as it comes.
        let used = parts.used_head[INDEX].load(Ordering::Acquire);
        let log = setup.inflight.as_ref().map(|inflight| SplitLog::open(inflight, setup.size, used)).transpose()?;
        let (log, again) = log.map_or((None, Vec::new()), |(log, again)| (Some(log), again));
        let head = used.wrapping_add(again.len() as u16);
        let mut queue = Self {
            setup: setup.clone(),
            memory: memory.clone(),
            window: Window::NONE,
            parts,
            taken: vec![0; setup.size.into()].into(),
            access: Access::Read,
            head,
            seen: head,
            ahead: head,
            used,
            shown: used,
            last: 0,
            asked: 0,
            armed: false,
            broken: None,
            again: Again::new(again),
            log,
        };
        queue.asked = queue.unwanted();
        queue.parts.used_head[FLAGS].store(if queue.has(EVENT_IDX) { 0 } else { NO_NOTICE }, Ordering::Relaxed);
        queue.parts.notify_at[0].store(queue.asked, Ordering::Relaxed);
        Ok(queue)
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
                self.head = self.head.wrapping_sub(1);
                if let Some(log) = &self.log {
                    log.put_back(chain.id);
                }
            }
        }
    }

    #[inline(always)]
    fn give_all(&mut self, used: impl Iterator<Item = Used>) {
        if self.names_the_last() {
            return self.give_by_last(used);
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
        if self.used == self.shown {
            return false;
        }
        let before = std::mem::replace(&mut self.shown, self.used);
        if self.names_the_last() {
            let entry = self.parts.used.at(before);
            entry[0].store(self.last.into(), Ordering::Relaxed);
            entry[1].store(0, Ordering::Relaxed);
        }
        if let Some(log) = &self.log {
            log.showing();
        }
        self.parts.used_head[INDEX].store(self.used, Ordering::Release);
        if let Some(log) = &mut self.log {
            log.shown(self.used);
        }
        // The guest writes what it wants, then looks at the index; we write the index, then look at what it wants.
        fence(Ordering::SeqCst);
        if self.has(EVENT_IDX) {
            let at = self.parts.interrupt_at[0].load(Ordering::Relaxed);
            return crate::slot::passed(at, before, self.used);
        }
        let wanted = self.parts.available_head[FLAGS].load(Ordering::Relaxed) & NO_NOTICE == 0;
        // The line is here now.
        self.seen = self.parts.available_head[INDEX].load(Ordering::Acquire);
        wanted
    }

    fn arm(&mut self) -> bool {
        self.ask(if self.has(EVENT_IDX) { self.head } else { 0 });
        self.armed = true;
        // The guest writes its index, then looks here; we write here, then look at the index.
        fence(Ordering::SeqCst);
        self.parts.available_head[INDEX].load(Ordering::Acquire) != self.head || self.again.peek().is_some()
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.ask(self.unwanted());
        }
    }

    fn base(&self) -> u32 {
        self.head.into()
    }
}
