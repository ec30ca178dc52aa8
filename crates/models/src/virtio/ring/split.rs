//! Split rings (section 2.7).

use std::sync::atomic::{Ordering, fence};

use ringpass_virtio::layout::{NO_NOTICE, flags};

use super::chain::Entry;
use super::used::Batch;
use super::{Areas, Chain, Fault, Mark, NOT_MAPPED, Ring, Rules, passes};
use crate::dma::{DmaMap, Hint};
use crate::virtio::liar::Liar;
use crate::virtio::lies::Lie;

/// The device's side of a split ring.
pub(in super::super) struct Split {
    rules: Rules,
    size: u16,
    table: u64,
    available: u64,
    used: u64,
    hint: Hint,
    /// The available entry that comes next, and, in order, the descriptor that it must name.
    next: u16,
    head: u16,
    /// The used entry that comes next, and the one at the last look for an interrupt.
    used_next: u16,
    judged: u16,
    batch: Batch,
}

impl Split {
    pub(in super::super) fn new([table, available, used]: Areas, size: u16, rules: Rules) -> Result<Self, Fault> {
        if !size.is_power_of_two() {
            return Err("a split ring whose size is no power of two");
        }
        let (hint, batch) = (Hint::default(), Batch::default());
        Ok(Self { rules, size, table, available, used, hint, next: 0, head: 0, used_next: 0, judged: 0, batch })
    }

    fn load(&mut self, dma: &DmaMap, address: u64) -> Result<u16, Fault> {
        dma.load(address, &mut self.hint).ok_or(NOT_MAPPED)
    }

    fn store(&mut self, dma: &DmaMap, address: u64, value: u16) -> Result<(), Fault> {
        dma.store(address, value, &mut self.hint).then_some(()).ok_or(NOT_MAPPED)
    }

    /// How many chains are available.
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

    /// Follows a chain (2.7.5).
    fn gather(&mut self, dma: &DmaMap, head: u16, chain: &mut Chain) -> Result<(), Fault> {
        let (mut table, mut entries, mut index, mut indirect) = (self.table, u32::from(self.size), head, false);
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
                match (self.rules.indirect, indirect, flags & flags::NEXT != 0) {
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
            if self.rules.in_order && !indirect && next != (index + 1) % self.size {
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
        if self.rules.in_order && head != self.head {
            return Err("descriptors that are not in ring order");
        }
        self.gather(dma, head, chain)?;
        chain.id = head;
        self.next = self.next.wrapping_add(1);
        self.head = head.wrapping_add(chain.slots) % self.size;
        Ok(true)
    }

    /// The available index at some time since the card last looked, or shortly before.
    fn may_be_at(&mut self, dma: &DmaMap, position: u16) -> bool {
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
        self.batch.add((self.used_next.into(), chain.id, written), whole, self.rules.in_order);
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
            Some(liar) if liar.tells(Lie::IndexJumps) => self.used_next.wrapping_add(self.size + 1),
            Some(liar) if liar.tells(Lie::IndexBack) => self.used_next.wrapping_sub(self.size / 2 + 1),
            _ => self.used_next,
        };
        self.store(dma, self.used.wrapping_add(2), index)
    }

    fn interrupts(&mut self, dma: &DmaMap) -> Result<bool, Fault> {
        let old = std::mem::replace(&mut self.judged, self.used_next);
        if old == self.used_next {
            return Ok(false);
        }
        fence(Ordering::SeqCst);
        if self.rules.on_empty && self.waiting(dma)? == 0 {
            return Ok(true);
        }
        if self.rules.event_idx {
            return Ok(passes(self.load(dma, self.used_event())?, self.used_next, old));
        }
        Ok(self.load(dma, self.available)? & NO_NOTICE == 0)
    }

    /// With event indices, one that has been passed is silence enough.
    fn quiet(&mut self, dma: &DmaMap) -> Result<(), Fault> {
        if self.rules.event_idx { Ok(()) } else { self.store(dma, self.used, NO_NOTICE) }
    }

    fn listen(&mut self, dma: &DmaMap) -> Result<bool, Fault> {
        if self.rules.event_idx {
            self.store(dma, self.available_event(), self.next)?;
        } else {
            self.store(dma, self.used, 0)?;
        }
        fence(Ordering::SeqCst);
        Ok(self.waiting(dma)? > 0)
    }

    fn scramble(&mut self, dma: &DmaMap, random: u64) -> Result<(), Fault> {
        self.store(dma, self.available_event(), random as u16)?;
        self.store(dma, self.used, (random >> 16) as u16 & !NO_NOTICE)
    }
}
