//! Split rings (section 2.7): a table of descriptors, a ring of available ones and a ring of used ones.
//!
//! As long as each packet takes one descriptor and the device uses them in the order in which they were posted,
//! the packet at position `p` of the rings is in descriptor `p`. The first packet that breaks this order makes
//! the queue use a [`FreeList`].

mod hand_over;

use std::arch::x86_64::__m256i;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use ringpass_memory::{Avx2, DmaArray, DmaRegion, Error, Four, Packet, Reclaimer};

use super::free_list::FreeList;
use super::pieces::{Descriptor, Piece, PieceLayout, Ring, Tables};
use super::vector::{self, Words};
use super::{
    Addresses, Broken, Config, DeviceAccess, HandedOver, InflightPolicy, Used, Virtqueue, by_fours, post_one_by_one,
};
use crate::layout::{LEGACY_ALIGN, NO_NOTIFY, flags};
use crate::slot::need_event;

/// The driver's side of a split ring.
pub struct Split {
    config: Config,
    descriptors: DmaArray<Descriptor>,
    tables: Option<Tables>,
    available: DmaArray<AtomicU16>,
    /// Flags and index of the used ring.
    used_head: DmaArray<AtomicU16>,
    /// Entries of the used ring: descriptor number, bytes written.
    used: DmaArray<[AtomicU32; 2]>,
    /// The field after the used ring: the available index at which the device wants a notification.
    notify_at: DmaArray<AtomicU16>,
    /// Packets by descriptor number; initialised if the device has the packet.
    packets: Box<[MaybeUninit<Packet>]>,
    /// Number of packets taken back. This counter and the next two wrap, as the indices of the rings do.
    head: u16,
    /// Number of packets posted.
    tail: u16,
    /// Number of packets published to the device.
    published: u16,
    /// Whether packets of several segments may be among those posted.
    chains: bool,
    free_list: Option<Box<FreeList>>,
    batch: Option<Batch>,
    broken: Option<Broken>,
    reclaimed: bool,
}

/// Offsets of the parts in the queue's memory. The used ring is aligned as legacy devices expect it.
struct RingLayout {
    available: usize,
    used: usize,
    notify_at: usize,
    tables: usize,
    end: usize,
}

/// Positions in the available ring, in units of 16 bits. `FLAGS` and `INDEX` are the same in the head of the
/// used ring.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const RING: usize = 2;

impl RingLayout {
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

    /// Returns the position of a counter in the rings.
    fn place(&self, counter: u16) -> usize {
        usize::from(counter & self.mask())
    }

    /// Returns up to `n` positions from a counter on, without wrapping.
    #[inline(always)]
    fn run(&self, counter: u16, n: u16) -> std::ops::Range<usize> {
        let start = self.place(counter);
        start..(start + usize::from(n)).min(self.config.size.into())
    }

    /// Returns the field in which the driver writes the used index at which it wants an interrupt.
    fn interrupt_at(&self) -> &AtomicU16 {
        &self.available[RING + usize::from(self.config.size)]
    }

    fn in_flight(&self) -> u16 {
        self.tail.wrapping_sub(self.head)
    }

    /// Switches to a free list, because the order of the ring was broken.
    #[cold]
    fn use_free_list(&mut self) -> &mut FreeList {
        let size = self.config.size;
        let head = self.head;
        let posted = self.in_flight();
        let mask = self.mask();
        self.free_list.get_or_insert_with(|| FreeList::new(size, (0..posted).map(|n| head.wrapping_add(n) & mask)))
    }

    fn write(&self, number: u16, piece: Piece, more: Option<u16>) {
        let (flag, next) = more.map_or((0, 0), |next| (flags::NEXT, next));
        let descriptor = &self.descriptors[usize::from(number)];
        descriptor[0].store(piece.address, Ordering::Relaxed);
        let word = u64::from(piece.len) | u64::from(piece.flags | flag) << 32 | u64::from(next) << 48;
        descriptor[1].store(word, Ordering::Relaxed);
    }

    /// Posts a packet that is divided into any number of pieces.
    #[inline(never)]
    fn post_pieces(&mut self, cut: PieceLayout, packet: Packet) -> Result<(), Packet> {
        let Some(number) = self.write_pieces(cut, &packet) else { return Err(packet) };
        // While the queue is in order, the entry holds this number already.
        self.available[RING + self.place(self.tail)].store(number, Ordering::Relaxed);
        self.chains |= packet.is_chained();
        self.packets[usize::from(number)].write(packet);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Writes the descriptors of a packet and returns the number of the first; `None` if there is no room.
    fn write_pieces(&mut self, cut: PieceLayout, packet: &Packet) -> Option<u16> {
        let (mut pieces, count) = (cut.pieces(packet), cut.pieces(packet).count());
        if count == 0 || self.room() == 0 {
            return None;
        }
        let next = self.free_list.as_ref().map_or(self.tail & self.mask(), |free_list| free_list.next_free());
        let single = match &self.tables {
            _ if count == 1 => pieces.next(),
            Some(tables) => tables.fill(next.into(), cut, packet, Ring::Split),
            None => None,
        };
        if let Some(piece) = single {
            self.write(next, piece, None);
            return Some(self.free_list.as_mut().map_or(next, |free_list| free_list.take(1, |_, _| {})));
        }
        if self.config.in_order || self.room() < count {
            return None;
        }
        self.use_free_list();
        let mut free_list = self.free_list.take()?;
        let number = free_list.take(count as u16, |number, next| {
            if let Some(piece) = pieces.next() {
                self.write(number, piece, next);
            }
        });
        self.free_list = Some(free_list);
        Some(number)
    }

    /// Takes the packet that the oldest used entry names, out of `ready` used packets. In order, that may be a
    /// batch named by its last packet. Returns the packet's number and the bytes written.
    #[cold]
    #[inline(never)]
    fn take_named(&mut self, ready: u16) -> Result<(u16, u32), Broken> {
        let (entry, place) = (&self.used[self.place(self.head)], self.head & self.mask());
        if self.config.in_order {
            let batch = self.batch.take().map_or_else(|| Batch::new(entry, self.head, self.mask(), ready), Ok)?;
            self.head = self.head.wrapping_add(1);
            self.batch = Some(batch).filter(|batch| batch.end != self.head);
            let whole = || self.packets[usize::from(place)].as_ptr();
            // SAFETY: `Batch::new` has checked that the batch is not longer than `ready`, and `ready` packets
            // are posted, so the packet at `place` is initialised. It is read before it is taken out.
            let len = if self.batch.is_none() { batch.len } else { unsafe { &*whole() }.total_len() as u32 };
            return Ok((place, len));
        }
        let (number, len) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
        self.use_free_list().give(number).ok_or(Broken::NotPosted(number))?;
        self.head = self.head.wrapping_add(1);
        Ok((number as u16, len))
    }

    /// Returns how many of the oldest `most` packets were used as a batch named by its last packet, of `ready`
    /// used packets. Only in order; otherwise 0.
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

    /// Returns the number of packets that the device has used and that were not taken yet.
    #[inline(always)]
    fn ready(&mut self) -> Result<u16, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let ready = self.used_head[INDEX].load(Ordering::Acquire).wrapping_sub(self.head);
        // The device cannot have used what was not published to it.
        if ready > self.published.wrapping_sub(self.head) {
            return Err(self.fail(Broken::IndexJump(ready)));
        }
        Ok(ready)
    }

    fn fail(&mut self, broken: Broken) -> Broken {
        *self.broken.insert(broken)
    }
}

/// Packets that were used together, of which the device names only the last (2.7.9).
#[derive(Clone, Copy)]
struct Batch {
    /// Value of `head` once all of them are taken.
    end: u16,
    /// Number of bytes written to the last packet.
    len: u32,
}

impl Batch {
    /// Creates the batch that a used entry names, if `head` is the oldest of `ready` used packets.
    fn new(entry: &[AtomicU32; 2], head: u16, mask: u16, ready: u16) -> Result<Self, Broken> {
        let (number, len) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
        let before = (number as u16).wrapping_sub(head) & mask;
        let right = number <= mask.into() && before < ready;
        let batch = Self { end: head.wrapping_add(before).wrapping_add(1), len };
        right.then_some(batch).ok_or(Broken::NotPosted(number))
    }
}

// SAFETY: `take` calls `each` at most `most` times. It passes only packets between head and tail, which were
// posted, and moves the head past each packet (or frees its number) before it passes it, so that none is passed
// twice. `post_each` passes the number of its earlier calls of `next`, while that is below `most`.
unsafe impl Virtqueue for Split {
    fn bytes(config: &Config) -> usize {
        RingLayout::of(config).end
    }

    fn new(region: &Arc<DmaRegion>, offset: usize, config: &Config) -> Result<Self, Error> {
        config.check(true)?;
        let (places, size) = (RingLayout::of(config), usize::from(config.size));
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
            published: 0,
            chains: false,
            free_list: None,
            batch: None,
            broken: None,
            reclaimed: false,
        };
        for (number, place) in queue.available[RING..RING + size].iter().enumerate() {
            place.store(number as u16, Ordering::Relaxed);
        }
        queue.available[FLAGS].store(NO_NOTIFY, Ordering::Relaxed);
        queue.interrupt_at().store(u16::MAX, Ordering::Relaxed);
        Ok(queue)
    }

    fn addresses(&self) -> Addresses {
        let descriptors = self.descriptors.iova();
        let driver = self.available.iova();
        let device = self.used_head.iova();
        Addresses { descriptors, driver, device }
    }

    fn room(&self) -> usize {
        match &self.free_list {
            None => (self.config.size - self.in_flight()).into(),
            Some(free_list) => free_list.room(),
        }
    }

    fn posted(&self) -> usize {
        self.in_flight().into()
    }

    #[inline(always)]
    fn post_each(&mut self, access: DeviceAccess, most: usize, mut next: impl FnMut(usize) -> Option<Packet>) -> usize {
        if self.free_list.is_some() || self.config.header > 0 {
            return post_one_by_one(self, self.config, access, most, next);
        }
        let flags = u64::from(access.flags()) << 32;
        let most = most.min(self.room());
        let mut total = 0;
        while total < most {
            let run = self.run(self.tail, (most - total) as u16);
            let n = run.len();
            let (descriptors, places) = (&self.descriptors[run.clone()], &mut self.packets[run]);
            let posted = by_fours(n, |at| {
                let Some(packet) = next(total + at) else { return false };
                debug_assert!(!packet.is_chained());
                // SAFETY: both slices have `n` items, as `run` has, and `by_fours` passes numbers below `n`.
                let (descriptor, place) = unsafe { (descriptors.get_unchecked(at), places.get_unchecked_mut(at)) };
                descriptor[0].store(packet.iova(), Ordering::Relaxed);
                descriptor[1].store(packet.len() as u64 | flags, Ordering::Relaxed);
                place.write(packet);
                true
            });
            self.tail = self.tail.wrapping_add(posted as u16);
            total += posted;
            if posted < n {
                break;
            }
        }
        total
    }

    #[inline(always)]
    unsafe fn post_fours(
        &mut self,
        avx2: Avx2,
        access: DeviceAccess,
        most: usize,
        next: impl FnMut(usize) -> Option<Four>,
    ) -> usize {
        if self.free_list.is_some() || self.config.header > 0 {
            return 0;
        }
        let run = self.run(self.tail, most.min(self.room()) as u16);
        let words = Words { first: u64::from(access.flags()) << 32, step: 0 };
        let (descriptors, places) = (&self.descriptors[run.clone()], &mut self.packets[run]);
        // SAFETY: `avx2` is the proof that the processor has it. Only the places own the packets, by this function's
        // contract.
        let posted = unsafe { vector::post(avx2, words, descriptors, places, next) };
        self.tail = self.tail.wrapping_add(posted as u16);
        posted
    }

    fn post_chain(&mut self, access: DeviceAccess, packet: Packet) -> Result<(), Packet> {
        self.post_pieces(PieceLayout::segments(access, &self.config), packet)
    }

    fn post_request(&mut self, packet: Packet, written: usize) -> Result<(), Packet> {
        self.post_pieces(PieceLayout::request(&packet, written), packet)
    }

    #[inline(always)]
    fn publish(&mut self) -> Option<u16> {
        if self.published == self.tail {
            return None;
        }
        let before = std::mem::replace(&mut self.published, self.tail);
        self.available[INDEX].store(self.tail, Ordering::Release);
        // The device writes `notify_at`, then reads the index; the driver writes the index, then reads
        // `notify_at`. Each has a full fence in between, so at least one sees the other's write.
        fence(Ordering::SeqCst);
        let wanted = if self.config.event_idx {
            let at = self.notify_at[0].load(Ordering::Relaxed);
            need_event(at, before, self.tail)
        } else {
            self.used_head[FLAGS].load(Ordering::Relaxed) & NO_NOTIFY == 0
        };
        wanted.then_some(self.tail)
    }

    #[inline(always)]
    fn take(&mut self, most: usize, mut each: impl FnMut(Used<'_>, u32)) -> Result<usize, Broken> {
        let ready = self.ready()?;
        let most = most.min(ready.into()) as u16;
        let mut left = most;
        let mut named = self.free_list.is_some() || self.batch.is_some();
        while left > 0 {
            let entry;
            let (places, entries) = if named {
                let (number, len) = self.take_named(ready - (most - left)).map_err(|broken| self.fail(broken))?;
                entry = [[u32::from(number).into(), len.into()]];
                (usize::from(number)..usize::from(number) + 1, &entry[..])
            } else {
                let places = self.run(self.head, left);
                // If `each` panics, the packets that it was not called with are lost.
                self.head = self.head.wrapping_add(places.len() as u16);
                (places.clone(), &self.used[places])
            };
            let (start, n) = (places.start as u32, places.len());
            let packets = &self.packets[places];
            let mut taken = 0;
            for (entry, packet) in entries.iter().zip(packets) {
                if entry[0].load(Ordering::Relaxed) != start + taken as u32 {
                    break;
                }
                // SAFETY: the packet was posted, so it is initialised: at most `left` positions from the head
                // are examined, all of which are used and thus posted (`ready`), or `take_named` has checked
                // its number. The place is not read again before the next post, because the head has moved past
                // it, or `take_named` has freed its number.
                each(unsafe { Used::new(packet) }, entry[1].load(Ordering::Relaxed));
                taken += 1;
            }
            // Packets that were used out of order are looked up by their number.
            self.head = self.head.wrapping_sub((n - taken) as u16);
            left -= taken as u16;
            named = taken < n || self.free_list.is_some() || self.batch.is_some();
        }
        Ok(most.into())
    }

    #[inline(always)]
    unsafe fn take_fours(&mut self, avx2: Avx2, most: usize, each: impl FnMut(&[Packet; 4], __m256i) -> bool) -> usize {
        if self.free_list.is_some() || self.batch.is_some() {
            return 0;
        }
        let ready = self.ready().unwrap_or(0);
        let places = self.run(self.head, most.min(ready.into()) as u16);
        let (start, entries) = (places.start as u32, &self.used[places.clone()]);
        // SAFETY: `avx2` is the proof that the processor has it. These packets are used and thus posted (`ready` has checked the
        // index), so they are initialised. The head moves past those that `each` has moved out.
        let taken = unsafe { vector::used_entries(avx2, start, entries, &self.packets[places], each) };
        self.head = self.head.wrapping_add(taken as u16);
        taken
    }

    fn reclaim_used(&mut self, vector: Option<Avx2>, to: &mut Reclaimer) -> Result<usize, Broken> {
        self.chains &= self.in_flight() > 0;
        if self.chains || self.free_list.is_some() || self.broken.is_some() {
            return self.take(usize::MAX, |used, _| to.add_one(used.whole().into_buffer()));
        }
        let (ready, mut total) = (self.ready()?, 0);
        while total < ready {
            let places = self.run(self.head, ready - total);
            let (start, entries) = (places.start as u32, &self.used[places.clone()]);
            let fours = match vector {
                // SAFETY: `avx2` is the proof that the processor has it. These packets are used and thus posted (`ready` has
                // checked the index), so they are initialised.
                Some(avx2) if self.batch.is_none() => unsafe {
                    vector::used_entries(avx2, start, entries, &self.packets[places.clone()], |_, _| true)
                },
                _ => 0,
            };
            let rest = if self.batch.is_some() { &[] } else { &entries[fours..] };
            let ordered = (fours
                + by_fours(rest.len(), |at| {
                    // SAFETY: `by_fours` passes numbers below the slice's length.
                    let entry = unsafe { rest.get_unchecked(at) };
                    entry[0].load(Ordering::Relaxed) == start + (fours + at) as u32
                })) as u16;
            let longest = places.len() as u16;
            let count = if ordered > 0 { ordered } else { self.batch_in_run(ready - total, longest)? };
            if count == 0 {
                // Packets that are used out of order are looked up by their number.
                let rest = self.take(usize::MAX, |used, _| to.add_one(used.whole().into_buffer()))?;
                return Ok(usize::from(total) + rest);
            }
            self.head = self.head.wrapping_add(count);
            total += count;
            // SAFETY: `count` packets from the head are used and thus posted (`ready` has checked the index),
            // so they are initialised. None has further segments, because `self.chains` is false. The head has
            // moved past them, so that they are not read again.
            unsafe { to.add_packets(&self.packets[places][..count.into()]) };
        }
        Ok(total.into())
    }

    fn arm(&mut self) {
        if self.config.event_idx {
            self.interrupt_at().store(self.head, Ordering::Relaxed);
        }
        self.available[FLAGS].store(0, Ordering::Relaxed);
        // The device writes its used index, then reads the flags and the event index; the driver writes those
        // here, then the caller reads the used index. Each has a full fence in between, so at least one sees
        // the other's write.
        fence(Ordering::SeqCst);
    }

    fn disarm(&mut self) {
        self.available[FLAGS].store(NO_NOTIFY, Ordering::Relaxed);
        if self.config.event_idx {
            // The index that is farthest away, so that no interrupt is sent for 65,535 packets.
            self.interrupt_at().store(self.head.wrapping_sub(1), Ordering::Relaxed);
        }
    }

    fn hand_over(&mut self, _: DeviceAccess, rest: InflightPolicy) -> Result<HandedOver, Broken> {
        let ready = self.ready()?;
        // The event suppression of the dead device does not apply to the next one.
        self.used_head[FLAGS].store(0, Ordering::Relaxed);
        self.notify_at[0].store(self.published, Ordering::Relaxed);
        if rest == InflightPolicy::Resubmit {
            self.make_available_again(ready).map_err(|broken| self.fail(broken))?;
        }
        Ok(HandedOver { base: self.head.wrapping_add(ready).into(), untaken: ready.into() })
    }

    unsafe fn reclaim(&mut self) {
        let ordered = (0..self.in_flight()).map(|n| self.place(self.head.wrapping_add(n)));
        let numbers: Vec<usize> = match &self.free_list {
            None => ordered.collect(),
            Some(free_list) => free_list.posted().collect(),
        };
        self.head = self.tail;
        (self.free_list, self.batch, self.reclaimed) = (None, None, true);
        for number in numbers {
            // SAFETY: `number` was posted, as the free list or the positions from the head to the tail tell, so
            // the packet is initialised. The head and the free list were reset before, so it is not read again.
            drop(unsafe { self.packets[number].assume_init_read() });
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
