//! Split virtqueues (section 2.7).

use std::sync::atomic::{Ordering, fence};

use ringpass_virtio::layout::{NO_NOTIFY, flags};

use super::chain::{Chain, Entry};
use super::device_ring::{Areas, Mark, Ring, RingFeatures, passes};
use super::fault::{Fault, NOT_MAPPED};
use super::used::{Batch, Used};
use crate::virtio::liar::Liar;
use crate::virtio::lies::Lie;
use ringpass_memory::{DmaMap, LookupHint};

/// Device's side of a split ring.
pub(in super::super) struct Split {
    ring_features: RingFeatures,
    size: u16,
    table: u64,
    available: u64,
    used: u64,
    hint: LookupHint,
    /// Index of the next available entry, and with IN_ORDER the descriptor that it must name.
    next: u16,
    head: u16,
    /// Index of the next used entry, and its value at the last decision about an interrupt.
    used_next: u16,
    signalled_used: u16,
    batch: Batch,
}

impl Split {
    pub(in super::super) fn new(
        [table, available, used]: Areas,
        size: u16,
        ring_features: RingFeatures,
    ) -> Result<Self, Fault> {
        if !size.is_power_of_two() {
            return Err("a split ring whose size is not a power of two");
        }
        let (hint, batch) = (LookupHint::default(), Batch::default());
        Ok(Self {
            ring_features,
            size,
            table,
            available,
            used,
            hint,
            next: 0,
            head: 0,
            used_next: 0,
            signalled_used: 0,
            batch,
        })
    }

    fn load(&mut self, dma: &DmaMap, address: u64) -> Result<u16, Fault> {
        dma.load(address, &mut self.hint).ok_or(NOT_MAPPED)
    }

    fn store(&mut self, dma: &DmaMap, address: u64, value: u16) -> Result<(), Fault> {
        dma.store(address, value, &mut self.hint).then_some(()).ok_or(NOT_MAPPED)
    }

    /// Returns the number of available chains.
    fn waiting(&mut self, dma: &DmaMap) -> Result<u16, Fault> {
        let waiting = self.load(dma, self.available.wrapping_add(2))?.wrapping_sub(self.next);
        if waiting > self.size { Err("the available index runs ahead of the ring") } else { Ok(waiting) }
    }

    fn used_event(&self) -> u64 {
        self.available.wrapping_add(4 + 2 * u64::from(self.size))
    }

    fn available_event(&self) -> u64 {
        self.used.wrapping_add(4 + 8 * u64::from(self.size))
    }

    /// Follows a chain of descriptors (2.7.5).
    fn gather(&mut self, dma: &DmaMap, head: u16, chain: &mut Chain) -> Result<(), Fault> {
        let mut table = self.table;
        let mut entries = u32::from(self.size);
        let mut index = head;
        let mut indirect = false;
        chain.slots = 0;
        loop {
            let address = table.wrapping_add(16 * u64::from(index));
            let entry = if indirect {
                Entry::read(dma, address, &mut self.hint)?
            } else {
                chain.slots += 1;
                let mut word = |at| dma.load(address.wrapping_add(at), &mut self.hint).ok_or(NOT_MAPPED);
                Entry::new([word(0)?, word(8)?])
            };
            let (flags, next) = (entry.third, entry.fourth);
            if flags & flags::INDIRECT != 0 {
                match (self.ring_features.indirect, indirect, flags & flags::NEXT != 0) {
                    (false, ..) => return Err("an indirect table that was not negotiated"),
                    (_, true, _) => return Err("an indirect table in an indirect table"),
                    (.., true) => return Err("an indirect table in the midst of a chain"),
                    _ => (table, entries, index, indirect) = (entry.address, entry.entries()?, 0, true),
                }
                continue;
            }
            chain.push(entry, flags, self.size)?;
            if flags & flags::NEXT == 0 {
                return Ok(());
            }
            if self.ring_features.in_order && !indirect && next != (index + 1) % self.size {
                return Err("a chain whose descriptors are not in ring order");
            }
            index = next;
            if u32::from(index) >= entries {
                return Err("a next descriptor outside the table");
            }
        }
    }
}

impl Ring for Split {
    fn next(&mut self, dma: &DmaMap, chain: &mut Chain) -> Result<bool, Fault> {
        if self.waiting(dma)? == 0 {
            return Ok(false);
        }
        chain.clear();
        let head = self.load(dma, self.available.wrapping_add(4 + 2 * u64::from(self.next % self.size)))?;
        if head >= self.size {
            return Err("an available entry that names no descriptor");
        }
        if self.ring_features.in_order && head != self.head {
            return Err("descriptors that are not in ring order");
        }
        self.gather(dma, head, chain)?;
        chain.id = head;
        self.next = self.next.wrapping_add(1);
        self.head = head.wrapping_add(chain.slots) % self.size;
        Ok(true)
    }

    /// Returns whether `position` may have been the available index since the last read, or shortly before it.
    fn is_plausible_position(&mut self, dma: &DmaMap, position: u16) -> bool {
        let shown = self.load(dma, self.available.wrapping_add(2)).unwrap_or_default().wrapping_sub(position);
        let seen = position.wrapping_sub(self.next).min(self.next.wrapping_sub(position));
        shown <= self.size.saturating_mul(2) && seen <= self.size
    }

    fn mark(&self) -> Mark {
        Mark(self.next, self.head)
    }

    fn rewind(&mut self, Mark(next, head): Mark) {
        (self.next, self.head) = (next, head);
    }

    fn put(&mut self, chain: &Chain, written: u32, whole: bool) {
        self.batch
            .add(Used { place: self.used_next.into(), id: chain.id, written, whole }, self.ring_features.in_order);
        self.used_next = self.used_next.wrapping_add(1);
    }

    fn publish(&mut self, dma: &DmaMap, liar: Option<&Liar>) -> Result<(), Fault> {
        if self.batch.is_empty() {
            return Ok(());
        }
        for used in self.batch.entries() {
            let (id, written) =
                liar.map_or((u32::from(used.id), used.written), |liar| liar.used(used.id, used.written, self.size));
            let address = self.used.wrapping_add(4 + 8 * u64::from(used.place as u16 % self.size));
            if !dma.store(address, id, &mut self.hint) || !dma.store(address.wrapping_add(4), written, &mut self.hint) {
                return Err(NOT_MAPPED);
            }
        }
        self.batch.clear();
        let index = match liar {
            Some(liar) if liar.triggers(Lie::IndexJumps) => self.used_next.wrapping_add(self.size + 1),
            Some(liar) if liar.triggers(Lie::IndexBack) => self.used_next.wrapping_sub(self.size / 2 + 1),
            _ => self.used_next,
        };
        self.store(dma, self.used.wrapping_add(2), index)
    }

    fn interrupts(&mut self, dma: &DmaMap) -> Result<bool, Fault> {
        let old = std::mem::replace(&mut self.signalled_used, self.used_next);
        if old == self.used_next {
            return Ok(false);
        }
        fence(Ordering::SeqCst);
        if self.ring_features.on_empty && self.waiting(dma)? == 0 {
            return Ok(true);
        }
        if self.ring_features.event_idx {
            return Ok(passes(self.load(dma, self.used_event())?, self.used_next, old));
        }
        Ok(self.load(dma, self.available)? & NO_NOTIFY == 0)
    }

    /// With EVENT_IDX nothing is written: the driver does not notify for an event index that it has passed.
    fn disable_notification(&mut self, dma: &DmaMap) -> Result<(), Fault> {
        if self.ring_features.event_idx { Ok(()) } else { self.store(dma, self.used, NO_NOTIFY) }
    }

    fn enable_notification(&mut self, dma: &DmaMap) -> Result<bool, Fault> {
        if self.ring_features.event_idx {
            self.store(dma, self.available_event(), self.next)?;
        } else {
            self.store(dma, self.used, 0)?;
        }
        fence(Ordering::SeqCst);
        Ok(self.waiting(dma)? > 0)
    }

    fn scramble(&mut self, dma: &DmaMap, random: u64) -> Result<(), Fault> {
        self.store(dma, self.available_event(), random as u16)?;
        self.store(dma, self.used, (random >> 16) as u16 & !NO_NOTIFY)
    }
}
