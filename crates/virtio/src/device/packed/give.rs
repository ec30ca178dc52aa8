//! How chains are given back, in slots of the ring or by the name of the last.

use std::sync::atomic::Ordering;

use super::{Packed, Used};
use crate::device::Access;
use crate::device::marks::unmark_all;
use crate::features::IN_ORDER;
use crate::layout::flags;

impl Packed {
    /// Gives chains back behind the first of a batch, and has each noted. Up to the end of the ring in one go, as it is
    /// seldom reached.
    #[inline(always)]
    pub(super) fn write_used(&mut self, mut used: impl Iterator<Item = Used>, mut note: impl FnMut(u16)) {
        loop {
            let (ring, taken, marks) = (&self.parts.ring[..], &mut self.taken[..], self.used.used());
            let start = usize::from(self.used.index);
            let mut index = start;
            for Used { id, descriptors, written } in &mut used {
                if let Some(mark) = taken.get_mut(usize::from(id)) {
                    *mark = 0;
                }
                ring[index][1].store(used_word(marks, id, written), Ordering::Relaxed);
                note(id);
                index += usize::from(descriptors);
                if index >= ring.len() {
                    break;
                }
            }
            let (slots, around) = ((index - start) as u16, index >= ring.len());
            self.pass(slots);
            if !around {
                break;
            }
        }
    }

    /// Gives the first chain of a batch back. Its slot waits for `publish`.
    pub(super) fn give_first(&mut self, Used { id, descriptors, written }: Used) {
        self.first = Some((self.used, used_word(self.used.used(), id, written)));
        self.unmark(id);
        if let Some(log) = &mut self.log {
            log.give(id);
        }
        self.pass(descriptors);
    }

    /// Gives chains back by the name of the last, in the slot of the first of the batch.
    #[inline(always)]
    pub(super) fn give_by_last(&mut self, used: impl Iterator<Item = Used>) {
        let Self { taken, log, .. } = self;
        let (slots, last) = match log {
            None => unmark_all(taken, used, |_| {}),
            Some(log) => unmark_all(taken, used, |id| log.give(id)),
        };
        let Some(Used { id, written, .. }) = last else { return };
        let slot = self.first.map_or(self.used, |(slot, _)| slot);
        self.first = Some((slot, used_word(slot.used(), id, written)));
        self.pass(slots);
    }

    /// So many slots were given back.
    #[inline(always)]
    fn pass(&mut self, slots: u16) {
        self.used.advance(slots, self.setup.size);
        self.held -= slots;
        self.fresh += slots;
    }

    /// Whether a batch of chains goes by the name of the last, in the slot of the first: in order, of those that were read
    /// (2.8.7).
    #[inline(always)]
    pub(super) fn names_the_last(&self) -> bool {
        self.access == Access::Read && self.has(IN_ORDER)
    }

    /// The device no longer has a buffer.
    pub(super) fn unmark(&mut self, id: u16) {
        if let Some(mark) = self.taken.get_mut(usize::from(id)) {
            *mark = 0;
        }
    }
}

/// The second word of a used descriptor.
#[inline(always)]
fn used_word(marks: u16, id: u16, written: u32) -> u64 {
    let flags = marks | if written > 0 { flags::WRITE } else { 0 };
    u64::from(written) | u64::from(id) << 32 | u64::from(flags) << 48
}
