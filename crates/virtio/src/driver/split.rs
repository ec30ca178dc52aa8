//! Split rings (section 2.7): a table of descriptors, a ring of those that are available, a ring of those that are used.
//!
//! As long as each packet takes one descriptor and the device uses them in the order in which they were posted, the
//! packet at place `p` of the rings lies in descriptor `p`. The first packet that does not keep to that makes the queue
//! [`Loose`].

mod hand_over;

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use ringpass_memory::{DmaArray, DmaRegion, Error, Packet, Reclaimer};

use super::loose::Loose;
use super::pieces::{Cut, Descriptor, Piece, Ring, Tables};
use super::{Access, Addresses, Broken, Config, HandedOver, Unreturned, Used, Virtqueue};
use crate::layout::{LEGACY_ALIGN, NO_NOTICE, flags};
use crate::slot::passed;

/// The driver's side of a split ring.
pub struct Split {
    config: Config,
    descriptors: DmaArray<Descriptor>,
    tables: Option<Tables>,
    available: DmaArray<AtomicU16>,
    /// Flags and index of the used ring.
    used_head: DmaArray<AtomicU16>,
    /// Its entries: descriptor, bytes written.
    used: DmaArray<[AtomicU32; 2]>,
    /// Behind the used ring: at which available index the device wants a notification.
    notify_at: DmaArray<AtomicU16>,
    /// By descriptor; initialised where the device has a packet.
    packets: Box<[MaybeUninit<Packet>]>,
    /// Packets taken back, posted, and shown to the device. These wrap, as the rings' own indices.
    head: u16,
    tail: u16,
    shown: u16,
    /// Whether packets of several segments may be among those posted.
    chains: bool,
    loose: Option<Box<Loose>>,
    batch: Option<Batch>,
    broken: Option<Broken>,
    reclaimed: bool,
}

/// Where the parts lie, from the start of the queue's memory. The used ring is aligned as legacy devices expect it.
struct Places {
    available: usize,
    used: usize,
    notify_at: usize,
    tables: usize,
    end: usize,
}

/// In the available ring, in units of 16 bits; and likewise in the head of the used ring.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const RING: usize = 2;

impl Places {
    fn of(config: &Config) -> Self {
        let size = usize::from(config.size);
        let available = size * size_of::<Descriptor>();
        let used = (available + 2 * (RING + size + 1)).next_multiple_of(LEGACY_ALIGN);
        let notify_at = used + 4 + 8 * size;
        let tables = (notify_at + 2).next_multiple_of(size_of::<Descriptor>());
        Self { available, used, notify_at, tables, end: tables + Tables::bytes(config) }
    }
}

impl Split {
    fn mask(&self) -> u16 {
        self.config.size - 1
    }

    /// Where a counter points to in the rings.
    fn place(&self, counter: u16) -> usize {
        usize::from(counter & self.mask())
    }

    /// Up to `n` places from a counter on, as far as they are in one piece.
    #[inline(always)]
    fn run(&self, counter: u16, n: u16) -> std::ops::Range<usize> {
        let start = self.place(counter);
        start..(start + usize::from(n)).min(self.config.size.into())
    }

    /// Where the driver says at which used index it wants an interrupt.
    fn interrupt_at(&self) -> &AtomicU16 {
        &self.available[RING + usize::from(self.config.size)]
    }

    fn in_flight(&self) -> u16 {
        self.tail.wrapping_sub(self.head)
    }

    /// Leaves the order behind.
    #[cold]
    fn loosen(&mut self) -> &mut Loose {
        let (size, head, posted, mask) = (self.config.size, self.head, self.in_flight(), self.mask());
        self.loose.get_or_insert_with(|| Loose::new(size, (0..posted).map(|n| head.wrapping_add(n) & mask)))
    }

    fn write(&self, number: u16, piece: Piece, more: Option<u16>) {
        let (flag, next) = more.map_or((0, 0), |next| (flags::NEXT, next));
        let descriptor = &self.descriptors[usize::from(number)];
        descriptor[0].store(piece.address, Ordering::Relaxed);
        let word = u64::from(piece.len) | u64::from(piece.flags | flag) << 32 | u64::from(next) << 48;
        descriptor[1].store(word, Ordering::Relaxed);
    }

    /// Posts a packet of any pieces.
    #[inline(never)]
    fn post_cut(&mut self, cut: Cut, packet: Packet) -> Result<(), Packet> {
        let Some(number) = self.write_pieces(cut, &packet) else { return Err(packet) };
        // In order, what stands there is the same number already.
        self.available[RING + self.place(self.tail)].store(number, Ordering::Relaxed);
        self.chains |= packet.is_chained();
        self.packets[usize::from(number)].write(packet);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Writes a packet's descriptors; `None` if there is no room. Returns the number of the first.
    fn write_pieces(&mut self, cut: Cut, packet: &Packet) -> Option<u16> {
        let (mut pieces, count) = (cut.pieces(packet), cut.pieces(packet).count());
        if count == 0 || self.room() == 0 {
            return None;
        }
        let next = self.loose.as_ref().map_or(self.tail & self.mask(), |loose| loose.next_free());
        let single = match &self.tables {
            _ if count == 1 => pieces.next(),
            Some(tables) => tables.fill(next.into(), cut, packet, Ring::Split),
            None => None,
        };
        if let Some(piece) = single {
            self.write(next, piece, None);
            return Some(self.loose.as_mut().map_or(next, |loose| loose.take(1, |_, _| {})));
        }
        if self.config.in_order || self.room() < count {
            return None;
        }
        self.loosen();
        let mut loose = self.loose.take()?;
        let number = loose.take(count as u16, |number, next| {
            if let Some(piece) = pieces.next() {
                self.write(number, piece, next);
            }
        });
        self.loose = Some(loose);
        Some(number)
    }

    /// Takes what the oldest used entry names, of `ready` used packets: in order that may be a batch by its last. Returns
    /// its number, and the bytes written.
    #[cold]
    #[inline(never)]
    fn take_named(&mut self, ready: u16) -> Result<(u16, u32), Broken> {
        let (entry, place) = (&self.used[self.place(self.head)], self.head & self.mask());
        if self.config.in_order {
            let batch = self.batch.take().map_or_else(|| Batch::new(entry, self.head, self.mask(), ready), Ok)?;
            self.head = self.head.wrapping_add(1);
            self.batch = Some(batch).filter(|batch| batch.end != self.head);
            let whole = || self.packets[usize::from(place)].as_ptr();
            // SAFETY: `ready` packets are posted, and the batch is not longer.
            let len = if self.batch.is_none() { batch.len } else { unsafe { &*whole() }.total_len() as u32 };
            return Ok((place, len));
        }
        let (number, len) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
        self.loosen().give(number).ok_or(Broken::NotPosted(number))?;
        self.head = self.head.wrapping_add(1);
        Ok((number as u16, len))
    }

    /// In order, how many of the oldest `most` packets were used as a batch by the name of the last; `ready` were used.
    fn batch_in_run(&mut self, ready: u16, most: u16) -> Result<u16, Broken> {
        if !self.config.in_order {
            return Ok(0);
        }
        let entry = &self.used[self.place(self.head)];
        let batch = self.batch.take().map_or_else(|| Batch::new(entry, self.head, self.mask(), ready), Ok);
        let batch = batch.map_err(|broken| self.fail(broken))?;
        let left = batch.end.wrapping_sub(self.head);
        self.batch = Some(batch).filter(|_| left > most);
        Ok(left.min(most))
    }

    /// How many packets the device has used.
    #[inline(always)]
    fn ready(&mut self) -> Result<u16, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let ready = self.used_head[INDEX].load(Ordering::Acquire).wrapping_sub(self.head);
        // What the device has not seen yet it cannot have used.
        if ready > self.shown.wrapping_sub(self.head) {
            return Err(self.fail(Broken::Jump(ready)));
        }
        Ok(ready)
    }

    fn fail(&mut self, broken: Broken) -> Broken {
        *self.broken.insert(broken)
    }
}

/// Packets that were used together, of which the device names the last (2.7.9).
#[derive(Clone, Copy)]
struct Batch {
    /// The head when all are taken.
    end: u16,
    /// Bytes written to the last one.
    len: u32,
}

impl Batch {
    /// What a used entry names when `head` is the oldest of `ready` used packets.
    fn new(entry: &[AtomicU32; 2], head: u16, mask: u16, ready: u16) -> Result<Self, Broken> {
        let (number, len) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
        let before = (number as u16).wrapping_sub(head) & mask;
        let right = number <= mask.into() && before < ready;
        let batch = Self { end: head.wrapping_add(before).wrapping_add(1), len };
        right.then_some(batch).ok_or(Broken::NotPosted(number))
    }
}

// SAFETY: what is taken lies between head and tail, at most `most` of it, and the head moves past it before it is handed
// out.
unsafe impl Virtqueue for Split {
    fn bytes(config: &Config) -> usize {
        Places::of(config).end
    }

    fn new(region: &Arc<DmaRegion>, offset: usize, config: &Config) -> Result<Self, Error> {
        config.check(true)?;
        let (places, size) = (Places::of(config), usize::from(config.size));
        let tables = (config.indirect > 0)
            .then(|| DmaArray::new(region, offset + places.tables, size * usize::from(config.indirect)))
            .transpose()?;
        let queue = Self {
            config: *config,
            descriptors: DmaArray::new(region, offset, size)?,
            tables: tables.map(|descriptors| Tables::new(descriptors, config)),
            available: DmaArray::new(region, offset + places.available, RING + size + 1)?,
            used_head: DmaArray::new(region, offset + places.used, RING)?,
            used: DmaArray::new(region, offset + places.used + 4, size)?,
            notify_at: DmaArray::new(region, offset + places.notify_at, 1)?,
            packets: (0..size).map(|_| MaybeUninit::uninit()).collect(),
            head: 0,
            tail: 0,
            shown: 0,
            chains: false,
            loose: None,
            batch: None,
            broken: None,
            reclaimed: false,
        };
        for (number, place) in queue.available[RING..RING + size].iter().enumerate() {
            place.store(number as u16, Ordering::Relaxed);
        }
        queue.available[FLAGS].store(NO_NOTICE, Ordering::Relaxed);
        queue.interrupt_at().store(u16::MAX, Ordering::Relaxed);
        Ok(queue)
    }

    fn addresses(&self) -> Addresses {
        let (descriptors, driver, device) = (self.descriptors.iova(), self.available.iova(), self.used_head.iova());
        Addresses { descriptors, driver, device }
    }

    fn room(&self) -> usize {
        match &self.loose {
            None => (self.config.size - self.in_flight()).into(),
            Some(loose) => loose.room(),
        }
    }

    fn posted(&self) -> usize {
        self.in_flight().into()
    }

    #[inline(always)]
    fn post_run(&mut self, access: Access, packets: impl Iterator<Item = Packet>) -> usize {
        let before = self.tail;
        if self.loose.is_some() || self.config.header > 0 {
            self.post_run_loosely(access, packets);
            return self.tail.wrapping_sub(before).into();
        }
        let mut packets = packets;
        let flags = u64::from(access.flags()) << 32;
        loop {
            let room = self.config.size - self.in_flight();
            let run = self.run(self.tail, room);
            let mut posted = 0;
            let places = self.descriptors[run.clone()].iter().zip(&mut self.packets[run.clone()]);
            for ((descriptor, place), packet) in places.zip(&mut packets) {
                debug_assert!(!packet.is_chained());
                descriptor[0].store(packet.iova(), Ordering::Relaxed);
                descriptor[1].store(packet.len() as u64 | flags, Ordering::Relaxed);
                place.write(packet);
                posted += 1;
            }
            self.tail = self.tail.wrapping_add(posted);
            if room == 0 || usize::from(posted) < run.len() {
                return self.tail.wrapping_sub(before).into();
            }
        }
    }

    fn post_chain(&mut self, access: Access, packet: Packet) -> Result<(), Packet> {
        self.post_cut(Cut::segments(access, &self.config), packet)
    }

    fn post_request(&mut self, packet: Packet, written: usize) -> Result<(), Packet> {
        self.post_cut(Cut::request(&packet, written), packet)
    }

    #[inline(always)]
    fn publish(&mut self) -> Option<u16> {
        if self.shown == self.tail {
            return None;
        }
        let before = std::mem::replace(&mut self.shown, self.tail);
        self.available[INDEX].store(self.tail, Ordering::Release);
        // The device writes what it wants, then looks at the index; we write the index, then look at what it wants.
        fence(Ordering::SeqCst);
        let wanted = if self.config.event_idx {
            let at = self.notify_at[0].load(Ordering::Relaxed);
            passed(at, before, self.tail)
        } else {
            self.used_head[FLAGS].load(Ordering::Relaxed) & NO_NOTICE == 0
        };
        wanted.then_some(self.tail)
    }

    #[inline(always)]
    fn take(&mut self, most: usize, mut each: impl FnMut(Used<'_>, u32)) -> Result<usize, Broken> {
        let ready = self.ready()?;
        let most = most.min(ready.into()) as u16;
        let mut left = most;
        let mut named = self.loose.is_some() || self.batch.is_some();
        while left > 0 {
            let entry;
            let (places, entries) = if named {
                let (number, len) = self.take_named(ready - (most - left)).map_err(|broken| self.fail(broken))?;
                entry = [[u32::from(number).into(), len.into()]];
                (usize::from(number)..usize::from(number) + 1, &entry[..])
            } else {
                let places = self.run(self.head, left);
                // Should `each` panic, those that it has not seen are lost.
                self.head = self.head.wrapping_add(places.len() as u16);
                (places.clone(), &self.used[places])
            };
            let (start, n) = (places.start as u32, places.len() as u16);
            let mut rest = n;
            for ((entry, packet), number) in entries.iter().zip(&self.packets[places]).zip(start..) {
                if entry[0].load(Ordering::Relaxed) != number {
                    break;
                }
                rest -= 1;
                // SAFETY: the device has had this packet (`left` are posted, or `take_named` says so), and no longer has;
                // the head and the numbers no longer know it.
                each(unsafe { Used::new(packet) }, entry[1].load(Ordering::Relaxed));
            }
            // What was not in order goes by its name.
            self.head = self.head.wrapping_sub(rest);
            left -= n - rest;
            named = rest > 0 || self.loose.is_some() || self.batch.is_some();
        }
        Ok(most.into())
    }

    fn take_back(&mut self, to: &mut Reclaimer) -> Result<usize, Broken> {
        self.chains &= self.in_flight() > 0;
        if self.chains || self.loose.is_some() || self.broken.is_some() {
            return self.take(usize::MAX, |used, _| to.add_one(used.whole().into_buffer()));
        }
        let (ready, mut total) = (self.ready()?, 0);
        while total < ready {
            let places = self.run(self.head, ready - total);
            let (start, count) = (places.start as u32, places.len() as u16);
            // Without a branch for each, which would cost more than to look at all.
            let strange =
                |found, (entry, number): (&[AtomicU32; 2], u32)| found | entry[0].load(Ordering::Relaxed) ^ number;
            let ordered = self.batch.is_none() && self.used[places.clone()].iter().zip(start..).fold(0, strange) == 0;
            let count = if ordered { count } else { self.batch_in_run(ready - total, count)? };
            if count == 0 {
                // What is not in order goes by its name.
                let rest = self.take(usize::MAX, |used, _| to.add_one(used.whole().into_buffer()))?;
                return Ok(usize::from(total) + rest);
            }
            self.head = self.head.wrapping_add(count);
            total += count;
            // SAFETY: they were posted, none has further segments, and the device no longer has them; the head moved
            // past them.
            unsafe { to.add_packets(&self.packets[places][..count.into()]) };
        }
        Ok(total.into())
    }

    fn arm(&mut self) {
        if self.config.event_idx {
            self.interrupt_at().store(self.head, Ordering::Relaxed);
        }
        self.available[FLAGS].store(0, Ordering::Relaxed);
        // The device writes its index, then looks here; we write here, then the caller looks at the index.
        fence(Ordering::SeqCst);
    }

    fn disarm(&mut self) {
        self.available[FLAGS].store(NO_NOTICE, Ordering::Relaxed);
        if self.config.event_idx {
            // The index farthest away.
            self.interrupt_at().store(self.head.wrapping_sub(1), Ordering::Relaxed);
        }
    }

    fn hand_over(&mut self, _: Access, rest: Unreturned) -> Result<HandedOver, Broken> {
        let ready = self.ready()?;
        // What the dead device asked for does not bind the next one.
        self.used_head[FLAGS].store(0, Ordering::Relaxed);
        self.notify_at[0].store(self.shown, Ordering::Relaxed);
        if rest == Unreturned::Anew {
            self.make_available_again(ready).map_err(|broken| self.fail(broken))?;
        }
        Ok(HandedOver { base: self.head.wrapping_add(ready).into(), untaken: ready.into() })
    }

    unsafe fn reclaim(&mut self) {
        let ordered = (0..self.in_flight()).map(|n| self.place(self.head.wrapping_add(n)));
        let numbers: Vec<usize> = match &self.loose {
            None => ordered.collect(),
            Some(loose) => loose.posted().collect(),
        };
        self.head = self.tail;
        (self.loose, self.batch, self.reclaimed) = (None, None, true);
        for number in numbers {
            // SAFETY: it was posted; the head and the numbers no longer know it.
            drop(unsafe { self.packets[number].assume_init_read() });
        }
    }
}

impl Split {
    /// As `post_run`, for packets of which each takes what it takes.
    #[inline(always)]
    fn post_run_loosely(&mut self, access: Access, mut packets: impl Iterator<Item = Packet>) {
        let needed = if self.config.header > 0 && self.tables.is_none() { 2 } else { 1 };
        while self.room() >= needed
            && let Some(packet) = packets.next()
        {
            if self.post_chain(access, packet).is_err() {
                break;
            }
        }
    }
}

impl Drop for Split {
    fn drop(&mut self) {
        if !self.reclaimed {
            self.descriptors.leak();
        }
    }
}
