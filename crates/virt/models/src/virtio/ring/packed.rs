//! Packed virtqueues (section 2.8).

use std::sync::atomic::{Ordering, fence};

use ringpass_virtio::layout::{event, flags};

use super::chain::{Chain, Entry};
use super::device_ring::{Areas, Mark, Ring, RingFeatures, passes};
use super::fault::{Fault, NOT_MAPPED};
use super::used::{Batch, Used};
use crate::virtio::liar::Liar;
use crate::virtio::lies::Lie;
use ringpass_memory::{DmaMap, LookupHint};

/// A slot of the ring, and its wrap counter (2.8.1).
#[derive(Clone, Copy)]
struct WrapIndex {
    slot: u16,
    wrap: bool,
}

impl WrapIndex {
    fn advance(&mut self, by: u16, size: u16) {
        let slot = u32::from(self.slot) + u32::from(by);
        self.wrap ^= slot >= size.into();
        self.slot = (slot % u32::from(size)) as u16;
    }

    /// Returns the form used in event suppression structures.
    fn encoded(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }
}

/// Device's side of a packed ring.
pub(in super::super) struct Packed {
    ring_features: RingFeatures,
    size: u16,
    ring: u64,
    driver_event: u64,
    device_event: u64,
    hint: LookupHint,
    next: WrapIndex,
    used: WrapIndex,
    /// Slots used since the last decision about an interrupt.
    added: u16,
    batch: Batch,
}

impl Packed {
    pub(in super::super) fn new(
        [ring, driver_event, device_event]: Areas,
        size: u16,
        ring_features: RingFeatures,
    ) -> Self {
        let start = WrapIndex { slot: 0, wrap: true };
        let (hint, batch) = (LookupHint::default(), Batch::default());
        Self { ring_features, size, ring, driver_event, device_event, hint, next: start, used: start, added: 0, batch }
    }

    fn address(&self, slot: u16) -> u64 {
        self.ring.wrapping_add(16 * u64::from(slot))
    }

    /// Reads a descriptor. Its second half is loaded first, because it holds the flags.
    fn entry(&mut self, dma: &DmaMap, slot: u16) -> Result<Entry, Fault> {
        let address = self.address(slot);
        let second = dma.load(address.wrapping_add(8), &mut self.hint).ok_or(NOT_MAPPED)?;
        Ok(Entry::new([dma.load(address, &mut self.hint).ok_or(NOT_MAPPED)?, second]))
    }

    fn is_available(place: WrapIndex, flags: u16) -> bool {
        let (available, used) = (flags & flags::AVAIL != 0, flags & flags::USED != 0);
        available == place.wrap && used != place.wrap
    }

    fn indirect(&mut self, dma: &DmaMap, table: Entry, chain: &mut Chain) -> Result<(), Fault> {
        if !self.ring_features.indirect {
            return Err("an indirect table that was not negotiated");
        }
        if table.fourth & flags::NEXT != 0 || chain.slots > 1 {
            return Err("an indirect table in a chain");
        }
        for i in 0..u64::from(table.entries()?) {
            let entry = Entry::read(dma, table.address.wrapping_add(16 * i), &mut self.hint)?;
            if entry.fourth & flags::INDIRECT != 0 {
                return Err("an indirect table in an indirect table");
            }
            chain.push(entry, entry.fourth, self.size)?;
        }
        Ok(())
    }
}

impl Ring for Packed {
    fn next(&mut self, dma: &DmaMap, chain: &mut Chain) -> Result<bool, Fault> {
        let mut entry = self.entry(dma, self.next.slot)?;
        if !Self::is_available(self.next, entry.fourth) {
            return Ok(false);
        }
        chain.clear();
        chain.slots = 0;
        let mut place = self.next;
        loop {
            // A driver makes the first descriptor of a chain available last (2.8.9, 2.8.21.1).
            if !Self::is_available(place, entry.fourth) {
                return Err("a chain whose further descriptors are not available");
            }
            chain.slots += 1;
            place.advance(1, self.size);
            if entry.fourth & flags::INDIRECT != 0 {
                self.indirect(dma, entry, chain)?;
            } else {
                chain.push(entry, entry.fourth, self.size)?;
            }
            chain.id = entry.third;
            if entry.fourth & flags::NEXT == 0 {
                break;
            }
            entry = self.entry(dma, place.slot)?;
        }
        self.next = place;
        Ok(true)
    }

    fn is_plausible_position(&mut self, _: &DmaMap, position: u16) -> bool {
        position & 0x7fff < self.size
    }

    fn mark(&self) -> Mark {
        Mark(self.next.slot, self.next.wrap.into())
    }

    fn rewind(&mut self, Mark(slot, wrap): Mark) {
        self.next = WrapIndex { slot, wrap: wrap != 0 };
    }

    fn put(&mut self, chain: &Chain, written: u32, whole: bool) {
        let place = u32::from(self.used.encoded());
        self.batch.add(Used { place, id: chain.id, written, whole }, self.ring_features.in_order);
        self.used.advance(chain.slots, self.size);
        self.added = self.added.saturating_add(chain.slots);
    }

    /// Writes the first entry last, so that the driver sees all buffers of a frame or none (5.1.6.4.1).
    fn publish(&mut self, dma: &DmaMap, liar: Option<&Liar>) -> Result<(), Fault> {
        for used in self.batch.entries().iter().rev() {
            let (id, written) =
                liar.map_or((u32::from(used.id), used.written), |liar| liar.used(used.id, used.written, self.size));
            let (slot, mut wrap) = (used.place & 0x7fff, used.place >> 15 != 0);
            let early = |liar: &Liar| liar.triggers(Lie::FlagsEarly);
            wrap ^= liar.is_some_and(|liar| liar.triggers(Lie::WrongWrap));
            let mut marks = if wrap { flags::AVAIL | flags::USED } else { 0 };
            marks |= if written > 0 { flags::WRITE } else { 0 };
            let second = |id: u32| u64::from(written) | u64::from(id as u16) << 32 | u64::from(marks) << 48;
            let address = self.ring.wrapping_add(16 * u64::from(slot) + 8);
            if liar.is_some_and(early) {
                // Marks the next slot as used too.
                let after = (slot + 1) % u32::from(self.size);
                let marks = if after == 0 { marks ^ (flags::AVAIL | flags::USED) } else { marks };
                let word = u64::from(used.id) << 32 | u64::from(marks) << 48;
                let _ = dma.store(self.ring.wrapping_add(16 * u64::from(after) + 8), word, &mut self.hint);
            }
            if !dma.store(address, second(id), &mut self.hint) {
                return Err(NOT_MAPPED);
            }
        }
        self.batch.clear();
        Ok(())
    }

    fn interrupts(&mut self, dma: &DmaMap) -> Result<bool, Fault> {
        let added = std::mem::take(&mut self.added);
        if added == 0 {
            return Ok(false);
        }
        fence(Ordering::SeqCst);
        let word: u32 = dma.load(self.driver_event, &mut self.hint).ok_or(NOT_MAPPED)?;
        match (word >> 16) as u16 & 3 {
            event::ENABLE => Ok(true),
            event::DISABLE => Ok(false),
            event::DESCRIPTOR if self.ring_features.event_idx => {
                let (slot, wrap) = (word as u16 & 0x7fff, word as u16 >> 15 != 0);
                if slot >= self.size {
                    return Err("event suppression at a slot outside the ring");
                }
                // A slot of the previous wrap counts as negative.
                let event = if wrap == self.used.wrap { slot } else { slot.wrapping_sub(self.size) };
                Ok(passes(event, self.used.slot, self.used.slot.wrapping_sub(added)))
            }
            event::DESCRIPTOR => Err("event suppression by slot, which was not negotiated"),
            _ => Err("event suppression of a reserved kind"),
        }
    }

    fn disable_notification(&mut self, dma: &DmaMap) -> Result<(), Fault> {
        let word = u32::from(event::DISABLE) << 16;
        dma.store(self.device_event, word, &mut self.hint).then_some(()).ok_or(NOT_MAPPED)
    }

    fn enable_notification(&mut self, dma: &DmaMap) -> Result<bool, Fault> {
        let kind = if self.ring_features.event_idx { event::DESCRIPTOR } else { event::ENABLE };
        let word = u32::from(self.next.encoded()) | u32::from(kind) << 16;
        if !dma.store(self.device_event, word, &mut self.hint) {
            return Err(NOT_MAPPED);
        }
        fence(Ordering::SeqCst);
        let entry = self.entry(dma, self.next.slot)?;
        Ok(Self::is_available(self.next, entry.fourth))
    }

    fn scramble(&mut self, dma: &DmaMap, random: u64) -> Result<(), Fault> {
        dma.store(self.device_event, random as u32 | 3 << 16, &mut self.hint).then_some(()).ok_or(NOT_MAPPED)
    }
}
