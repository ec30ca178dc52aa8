//! Packed rings (section 2.8): one ring of descriptors, which the driver makes available and the device marks
//! as used, in the same slots.
//!
//! As long as each packet takes one slot and the device uses them in the order in which they were posted, a
//! packet's number is the number of its slot. The first packet that breaks this order makes the queue use a
//! [`FreeList`].

mod hand_over;

use std::arch::x86_64::__m256i;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ringpass_memory::{Avx2, DmaArray, DmaRegion, Error, Four, Packet, Reclaimer};

use super::free_list::FreeList;
use super::pieces::{Descriptor, Piece, PieceLayout, Ring, Tables};
use super::vector::{self, Words};
use super::{
    Addresses, Broken, Config, DeviceAccess, HandedOver, InflightPolicy, Used, Virtqueue, by_fours, post_one_by_one,
};
use crate::layout::{event, flags};
use crate::slot::WrapIndex;

/// The driver's side of a packed ring.
pub struct Packed {
    config: Config,
    descriptors: DmaArray<Descriptor>,
    tables: Option<Tables>,
    /// Event suppression of the driver and of the device: offset and wrap bit, flags in the upper 16 bits.
    driver_event: DmaArray<AtomicU32>,
    device_event: DmaArray<AtomicU32>,
    /// Packets by their number; initialised if the device has the packet.
    packets: Box<[MaybeUninit<Packet>]>,
    /// The oldest slot that has not come back.
    head: WrapIndex,
    /// The next free slot.
    tail: WrapIndex,
    /// Number of slots that the device has.
    slots: u16,
    /// Number of these slots that were not published yet.
    unpublished: u16,
    /// Number of packets in these slots.
    posted: u16,
    /// Whether packets of several segments may be among those posted.
    chains: bool,
    free_list: Option<Box<FreeList>>,
    batch: Option<Batch>,
    broken: Option<Broken>,
    reclaimed: bool,
}

/// Packets that were used together, of which the device names only the last (2.8.7).
#[derive(Clone, Copy)]
struct Batch {
    left: u16,
    /// Number of bytes written to the last packet.
    len: u32,
}

impl Batch {
    /// Creates the batch that ends with packet `number`, which the oldest slot names.
    fn new(number: u16, len: u32, queue: &Packed) -> Result<Self, Broken> {
        let (number32, size) = (u32::from(number), u32::from(queue.config.size));
        let before = (number32 + size - u32::from(queue.head.index)) % size;
        let right = number32 < size && before < u32::from(queue.posted);
        right.then_some(Self { left: before as u16 + 1, len }).ok_or(Broken::NotPosted(number32))
    }
}

/// Mask of a descriptor's number and of the flags that tell its owner, in the upper half of its second word.
const ID_AND_OWNER_MASK: u32 = 0xffff | ((flags::AVAIL | flags::USED) as u32) << 16;

/// Returns the offset of the event structures, which follow the ring. The indirect tables follow them.
fn events(config: &Config) -> usize {
    usize::from(config.size) * size_of::<Descriptor>()
}

fn tables(config: &Config) -> usize {
    events(config) + size_of::<Descriptor>()
}

impl Packed {
    /// Switches to a free list, because the order of the ring was broken.
    #[cold]
    fn use_free_list(&mut self) -> &mut FreeList {
        let size = self.config.size;
        let posted = self.posted;
        let mut slot = self.head;
        self.free_list.get_or_insert_with(|| {
            let next = |_| {
                let index = slot.index;
                slot.advance(1, size);
                index
            };
            FreeList::new(size, (0..posted).map(next))
        })
    }

    /// Posts a packet that is divided into any number of pieces.
    #[inline(never)]
    fn post_pieces(&mut self, cut: PieceLayout, packet: Packet) -> Result<(), Packet> {
        let Some(number) = self.write_pieces(cut, &packet) else { return Err(packet) };
        self.chains |= packet.is_chained();
        self.packets[usize::from(number)].write(packet);
        Ok(())
    }

    /// Writes the descriptors of a packet and returns its number; `None` if there is no room.
    fn write_pieces(&mut self, cut: PieceLayout, packet: &Packet) -> Option<u16> {
        let count = cut.pieces(packet).count();
        if count == 0 || self.room() == 0 {
            return None;
        }
        let next = self.free_list.as_ref().map_or(self.tail.index, |free_list| free_list.next_free());
        let single = match &self.tables {
            _ if count == 1 => cut.pieces(packet).next(),
            Some(tables) => tables.fill(next.into(), cut, packet, Ring::Packed),
            None => None,
        };
        if let Some(piece) = single {
            let number = self.free_list.as_mut().map_or(next, |free_list| free_list.take_number(1));
            self.write([piece].into_iter(), number);
            return Some(number);
        }
        if self.config.in_order || self.room() < count {
            return None;
        }
        let number = self.use_free_list().take_number(count as u16);
        self.write(cut.pieces(packet), number);
        Some(number)
    }

    /// Makes descriptors available from the tail on. The first is written last, which makes all of them visible
    /// (2.8.16).
    fn write(&mut self, mut pieces: impl Iterator<Item = Piece>, number: u16) {
        let mut slot = self.tail;
        let mut first = None;
        let mut next = pieces.next();
        while let Some(piece) = next {
            next = pieces.next();
            let flag = if next.is_some() { flags::NEXT } else { 0 } | piece.flags | slot.available();
            let word = u64::from(piece.len) | u64::from(number) << 32 | u64::from(flag) << 48;
            let descriptor = &self.descriptors[usize::from(slot.index)];
            descriptor[0].store(piece.address, Ordering::Relaxed);
            match first {
                None => first = Some((slot, word)),
                Some(_) => descriptor[1].store(word, Ordering::Relaxed),
            }
            slot.advance(1, self.config.size);
            self.slots += 1;
            self.unpublished += 1;
        }
        if let Some((first, word)) = first {
            self.descriptors[usize::from(first.index)][1].store(word, Ordering::Release);
            self.posted += 1;
        }
        self.tail = slot;
    }

    /// Takes the packet that the oldest slot names, if the slot was used. In order, that may be a batch named
    /// by its last packet. Returns the packet's number and the bytes written.
    #[inline(never)]
    fn take_named(&mut self) -> Result<Option<(u16, u32)>, Broken> {
        let place = self.head.index;
        let word = self.descriptors[usize::from(place)][1].load(Ordering::Acquire);
        let len = word as u32;
        let number = (word >> 32) as u16;
        let whose = (word >> 48) as u16;
        let used = whose & (flags::AVAIL | flags::USED) == self.head.used();
        if self.batch.is_none() && (!used || self.posted == 0) {
            return Ok(None);
        }
        if self.config.in_order {
            let batch = self.batch.take().map_or_else(|| Batch::new(number, len, self), Ok)?;
            self.batch = (batch.left > 1).then_some(Batch { left: batch.left - 1, ..batch });
            self.advance(1);
            let whole = || self.packets[usize::from(place)].as_ptr();
            // SAFETY: `Batch::new` has checked that all packets of the batch were posted (`before < posted`),
            // so the packet at `place` is initialised. It is read before it is taken out.
            let len = if self.batch.is_none() { batch.len } else { unsafe { &*whole() }.total_len() as u32 };
            return Ok(Some((place, len)));
        }
        // It is the expected packet after all: the device had not marked it yet when the run was examined.
        if self.free_list.is_none() && number == place {
            self.advance(1);
            return Ok(Some((place, len)));
        }
        let slots = self.use_free_list().give_number(number.into()).ok_or(Broken::NotPosted(number.into()))?;
        self.advance(slots);
        Ok(Some((number, len)))
    }

    /// Returns how many of the oldest `most` packets were used as a batch named by its last packet. Only in
    /// order; otherwise 0.
    fn batch_in_run(&mut self, most: usize) -> Result<usize, Broken> {
        let word = self.descriptors[usize::from(self.head.index)][1].load(Ordering::Acquire);
        let (number, whose) = ((word >> 32) as u16, (word >> 48) as u16);
        let used = self.posted > 0 && whose & (flags::AVAIL | flags::USED) == self.head.used();
        let left = match self.batch.take() {
            Some(batch) => batch.left,
            None if self.config.in_order && used => {
                Batch::new(number, 0, self).map_err(|broken| *self.broken.insert(broken))?.left
            }
            None => return Ok(0),
        };
        let count = left.min(most as u16);
        self.batch = (left > count).then_some(Batch { left: left - count, len: 0 });
        Ok(count.into())
    }

    /// Returns whether the device has a packet in the oldest slot and has marked it as used.
    #[inline(always)]
    fn is_head_used(&self) -> bool {
        let word = self.descriptors[usize::from(self.head.index)][1].load(Ordering::Acquire);
        self.posted > 0 && (word >> 48) as u16 & (flags::AVAIL | flags::USED) == self.head.used()
    }

    /// Moves the tail past packets that were posted in one slot each.
    #[inline(always)]
    fn extend(&mut self, packets: u16) {
        self.tail.advance(packets, self.config.size);
        self.slots += packets;
        self.unpublished += packets;
        self.posted += packets;
    }

    /// Moves the head past packets that were used in one slot each.
    #[inline(always)]
    fn shrink(&mut self, packets: u16) {
        self.head.advance(packets, self.config.size);
        self.slots -= packets;
        self.posted -= packets;
    }

    /// Returns up to `n` places from an index on, without wrapping.
    #[inline(always)]
    fn run(&self, slot: WrapIndex, n: usize) -> std::ops::Range<usize> {
        let start = usize::from(slot.index);
        start..(start + n).min(self.config.size.into())
    }

    /// Moves the head past the slots of a packet.
    fn advance(&mut self, slots: u16) {
        self.head.advance(slots, self.config.size);
        self.slots -= slots;
        self.posted -= 1;
    }
}

// SAFETY: `take` calls `each` at most `left <= most` times. It passes only packets that were posted, and moves
// the head past each packet (or frees its number) before it passes it, so that none is passed twice.
// `post_each` passes the number of its earlier calls of `next`, while that is below `most`.
unsafe impl Virtqueue for Packed {
    fn bytes(config: &Config) -> usize {
        tables(config) + Tables::bytes(config)
    }

    fn new(region: &Arc<DmaRegion>, offset: usize, config: &Config) -> Result<Self, Error> {
        config.check(false)?;
        let size = usize::from(config.size);
        let entries = size * usize::from(config.indirect);
        let table = (entries > 0).then(|| DmaArray::new(region, offset + tables(config), entries)).transpose()?;
        let events = offset + events(config);
        let queue = Self {
            config: *config,
            descriptors: DmaArray::new(region, offset, size)?,
            tables: table.map(|descriptors| Tables::new(descriptors, config)),
            driver_event: DmaArray::new(region, events, 1)?,
            device_event: DmaArray::new(region, events + 4, 1)?,
            packets: (0..size).map(|_| MaybeUninit::uninit()).collect(),
            head: WrapIndex { index: 0, wrap: true },
            tail: WrapIndex { index: 0, wrap: true },
            slots: 0,
            unpublished: 0,
            posted: 0,
            chains: false,
            free_list: None,
            batch: None,
            broken: None,
            reclaimed: false,
        };
        queue.driver_event[0].store(u32::from(event::DISABLE) << 16, Ordering::Relaxed);
        Ok(queue)
    }

    fn addresses(&self) -> Addresses {
        let (descriptors, driver, device) =
            (self.descriptors.iova(), self.driver_event.iova(), self.device_event.iova());
        Addresses { descriptors, driver, device }
    }

    fn room(&self) -> usize {
        (self.config.size - self.slots).into()
    }

    fn posted(&self) -> usize {
        self.posted.into()
    }

    #[inline(always)]
    fn post_each(&mut self, access: DeviceAccess, most: usize, mut next: impl FnMut(usize) -> Option<Packet>) -> usize {
        if self.free_list.is_some() || self.config.header > 0 {
            return post_one_by_one(self, self.config, access, most, next);
        }
        let most = most.min(self.room());
        let mut total = 0;
        while total < most {
            let run = self.run(self.tail, most - total);
            let n = run.len();
            let flags = access.flags() | self.tail.available();
            let word = (run.start as u64) << 32 | u64::from(flags) << 48;
            let (descriptors, places) = (&self.descriptors[run.clone()], &mut self.packets[run]);
            let posted = by_fours(n, |at| {
                let Some(packet) = next(total + at) else { return false };
                debug_assert!(!packet.is_chained());
                // SAFETY: both slices have `n` items, as `run` has, and `by_fours` passes numbers below `n`.
                let (descriptor, place) = unsafe { (descriptors.get_unchecked(at), places.get_unchecked_mut(at)) };
                descriptor[0].store(packet.iova(), Ordering::Relaxed);
                descriptor[1].store(word + ((at as u64) << 32 | packet.len() as u64), Ordering::Release);
                place.write(packet);
                true
            });
            self.extend(posted as u16);
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
        let run = self.run(self.tail, most.min(self.room()));
        let flags = access.flags() | self.tail.available();
        let words = Words { first: (run.start as u64) << 32 | u64::from(flags) << 48, step: 1 << 32 };
        let (descriptors, places) = (&self.descriptors[run.clone()], &mut self.packets[run]);
        // SAFETY: `avx2` is the proof that the processor has it. Only the places own the packets, by this function's
        // contract.
        let posted = unsafe { vector::post(avx2, words, descriptors, places, next) };
        self.extend(posted as u16);
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
        if self.unpublished == 0 {
            return None;
        }
        let unpublished = std::mem::take(&mut self.unpublished);
        // The device writes its event suppression, then reads the descriptors; the driver writes those, then
        // reads the event suppression. Each has a full fence in between, so at least one sees the other's
        // write.
        fence(Ordering::SeqCst);
        let asked = self.device_event[0].load(Ordering::Relaxed);
        let wanted = match (asked >> 16) as u16 & 3 {
            event::DISABLE => false,
            event::DESCRIPTOR => self.tail.need_event(asked as u16, unpublished, self.config.size),
            _ => true,
        };
        wanted.then_some(self.tail.with_wrap())
    }

    #[inline(always)]
    fn take(&mut self, most: usize, mut each: impl FnMut(Used<'_>, u32)) -> Result<usize, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let most = most.min(self.posted.into()) as u16;
        let mut left = most;
        let mut named = self.free_list.is_some() || self.batch.is_some();
        while left > 0 {
            let descriptor;
            let (places, used, descriptors) = if named {
                let (number, len) = match self.take_named() {
                    Ok(Some(named)) => named,
                    Ok(None) => break,
                    Err(broken) => return Err(*self.broken.insert(broken)),
                };
                let word = u64::from(len) | u64::from(number) << 32;
                descriptor = [[0.into(), word.into()]];
                (usize::from(number)..usize::from(number) + 1, 0, &descriptor[..])
            } else {
                let places = self.run(self.head, left.into());
                (places.clone(), self.head.used(), &self.descriptors[places])
            };
            let (start, n) = (places.start as u32 | u32::from(used) << 16, places.len());
            let head = self.head;
            if !named {
                // If `each` panics, the packets that it was not called with are lost.
                self.head.advance(n as u16, self.config.size);
                self.slots -= n as u16;
                self.posted -= n as u16;
            }
            let packets = &self.packets[places];
            let mut taken = 0;
            for (descriptor, packet) in descriptors.iter().zip(packets) {
                let word = descriptor[1].load(Ordering::Acquire);
                if (word >> 32) as u32 & ID_AND_OWNER_MASK != start + taken as u32 {
                    break;
                }
                // SAFETY: the packet was posted, so it is initialised: at most `left <= posted` slots from the
                // head are examined, or `take_named` has checked its number. The device has marked it as used.
                // The place is not read again before the next post, because the head has moved past it, or
                // `take_named` has freed its number.
                each(unsafe { Used::new(packet) }, word as u32);
                taken += 1;
            }
            let rest = (n - taken) as u16;
            left -= taken as u16;
            if !named {
                self.posted += rest;
                self.slots += rest;
                self.head = head;
                self.head.advance(taken as u16, self.config.size);
            }
            // Packets that were used out of order are looked up by their number.
            named = rest > 0 || self.free_list.is_some() || self.batch.is_some();
        }
        Ok((most - left).into())
    }

    #[inline(always)]
    unsafe fn take_fours(&mut self, avx2: Avx2, most: usize, each: impl FnMut(&[Packet; 4], __m256i) -> bool) -> usize {
        if self.free_list.is_some() || self.batch.is_some() || self.broken.is_some() {
            return 0;
        }
        let places = self.run(self.head, most.min(self.posted.into()));
        let expected = [places.start as u32 | u32::from(self.head.used()) << 16, ID_AND_OWNER_MASK];
        let descriptors = &self.descriptors[places.clone()];
        // SAFETY: `avx2` is the proof that the processor has it. At most `posted` packets from the head are examined, so they
        // are initialised. The head moves past those that `each` has moved out.
        let taken = unsafe { vector::used_descriptors(avx2, expected, descriptors, &self.packets[places], each) };
        self.shrink(taken as u16);
        taken
    }

    fn reclaim_used(&mut self, vector: Option<Avx2>, to: &mut Reclaimer) -> Result<usize, Broken> {
        self.chains &= self.posted > 0;
        if self.chains || self.free_list.is_some() || self.broken.is_some() {
            return self.take(usize::MAX, |used, _| to.add_one(used.whole().into_buffer()));
        }
        let mut total = 0;
        while self.batch.is_some() || self.is_head_used() {
            let places = self.run(self.head, self.posted.into());
            let expected = places.start as u32 | u32::from(self.head.used()) << 16;
            let descriptors = &self.descriptors[places.clone()];
            let fours = match vector {
                // SAFETY: `avx2` is the proof that the processor has it. At most `posted` packets from the head are examined,
                // so they are initialised.
                Some(avx2) => unsafe {
                    let expected = [expected, ID_AND_OWNER_MASK];
                    vector::used_descriptors(avx2, expected, descriptors, &self.packets[places.clone()], |_, _| true)
                },
                None => 0,
            };
            let rest = &descriptors[fours..];
            let run = fours
                + by_fours(rest.len(), |at| {
                    // SAFETY: `by_fours` passes numbers below the slice's length.
                    let descriptor = unsafe { rest.get_unchecked(at) };
                    (descriptor[1].load(Ordering::Acquire) >> 32) as u32 & ID_AND_OWNER_MASK
                        == expected + (fours + at) as u32
                });
            let count = if self.batch.is_some() || run == 0 { self.batch_in_run(places.len())? } else { run };
            self.shrink(count as u16);
            // SAFETY: `count` is at most `posted`, so these packets were posted and are initialised. None has
            // further segments, because `self.chains` is false. The device has marked them as used, and the
            // head has moved past them, so that they are not read again.
            unsafe { to.add_packets(&self.packets[places][..count]) };
            total += count;
            if count == 0 {
                // Packets that were used out of order are looked up by their number.
                return Ok(total + self.take(usize::MAX, |used, _| to.add_one(used.whole().into_buffer()))?);
            }
        }
        Ok(total)
    }

    fn arm(&mut self) {
        let asked = if self.config.event_idx {
            u32::from(self.head.with_wrap()) | u32::from(event::DESCRIPTOR) << 16
        } else {
            u32::from(event::ENABLE) << 16
        };
        self.driver_event[0].store(asked, Ordering::Relaxed);
        // The device writes a descriptor, then reads the event suppression; the driver writes that here, then
        // the caller reads the descriptors. Each has a full fence in between, so at least one sees the other's
        // write.
        fence(Ordering::SeqCst);
    }

    fn disarm(&mut self) {
        self.driver_event[0].store(u32::from(event::DISABLE) << 16, Ordering::Relaxed);
    }

    fn hand_over(&mut self, access: DeviceAccess, rest: InflightPolicy) -> Result<HandedOver, Broken> {
        let (next, left) = self.not_returned().map_err(|broken| *self.broken.insert(broken))?;
        // The event suppression of the dead device does not apply to the next one.
        self.device_event[0].store(u32::from(event::ENABLE) << 16, Ordering::Relaxed);
        if rest == InflightPolicy::Resubmit {
            self.make_available_again(access, next, &left);
        }
        let next = u32::from(next.with_wrap());
        Ok(HandedOver { base: next | next << 16, untaken: usize::from(self.posted) - left.len() })
    }

    unsafe fn reclaim(&mut self) {
        let (size, mut slot) = (self.config.size, self.head);
        let numbers: Vec<usize> = match &self.free_list {
            None => std::iter::repeat_with(|| {
                let index = slot.index.into();
                slot.advance(1, size);
                index
            })
            .take(self.posted.into())
            .collect(),
            Some(free_list) => free_list.posted().collect(),
        };
        (self.slots, self.unpublished, self.posted, self.head) = (0, 0, 0, self.tail);
        (self.free_list, self.batch, self.reclaimed) = (None, None, true);
        for number in numbers {
            // SAFETY: `number` was posted, as the free list or the slots from the head to the tail tell, so the
            // packet is initialised. The counters were reset before, so it is not read again.
            drop(unsafe { self.packets[number].assume_init_read() });
        }
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        if !self.reclaimed {
            self.descriptors.leak();
        }
    }
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{Mempool, MempoolConfig, RegionConfig};

    use super::*;

    /// A slot may not be used yet when the run is examined, but be used when it is examined alone a moment
    /// later.
    #[test]
    fn a_device_that_is_caught_at_work_is_in_order_still() {
        let config = Config { size: 4, event_idx: false, in_order: false, indirect: 0, header: 0 };
        let region = DmaRegion::new(Packed::bytes(&config), &RegionConfig::default()).unwrap();
        let mut queue = Packed::new(&region, 0, &config).unwrap();
        let pool = Mempool::new(&MempoolConfig { buffers: 8, ..Default::default() }).unwrap();
        assert_eq!(queue.post_run(DeviceAccess::Write, pool.cache().packets(3)), 3);
        let ring: DmaArray<Descriptor> = DmaArray::new(&region, 0, 4).unwrap();
        let give_back = |place: u64, number: u64, len: u64| {
            let used = u64::from(flags::AVAIL | flags::USED) << 48;
            ring[place as usize][1].store(len | number << 32 | used, Ordering::Release);
        };
        give_back(0, 0, 60);
        let named = queue.take_named();
        assert_eq!((named, queue.free_list.is_none(), queue.posted()), (Ok(Some((0, 60))), true, 2));
        // A packet that is really out of order.
        give_back(1, 2, 70);
        let named = queue.take_named();
        assert_eq!((named, queue.free_list.is_none(), queue.posted()), (Ok(Some((2, 70))), false, 1));
        give_back(2, 2, 70);
        assert_eq!(queue.take_named(), Err(Broken::NotPosted(2)));
        std::mem::forget(queue);
    }
}
