//! Gives chains back: one slot for each, or a batch by the id of its last chain.

use std::sync::atomic::Ordering;

use super::{Packed, Used};
use crate::device::DeviceAccess;
use crate::device::marks::unmark_all;
use crate::features::IN_ORDER;
use crate::layout::flags;

impl Packed {
    /// Writes used descriptors for all chains of a batch except the first, and passes the id of each to `note`.
    /// Runs up to the end of the ring in one go, as that is rarely reached.
    #[inline(always)]
    pub(super) fn write_used(&mut self, mut used: impl Iterator<Item = Used>, mut note: impl FnMut(u16)) {
        loop {
            let ring = &self.parts.ring[..];
            let taken = &mut self.taken[..];
            let marks = self.used.used();
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

    /// Gives back the first chain of a batch. Its descriptor is written by `publish`.
    pub(super) fn push_first_used(&mut self, Used { id, descriptors, written }: Used) {
        self.first = Some((self.used, used_word(self.used.used(), id, written)));
        self.unmark(id);
        if let Some(log) = &mut self.log {
            log.give(id);
        }
        self.pass(descriptors);
    }

    /// Gives back a batch by the id of its last chain, in the slot of the first.
    #[inline(always)]
    pub(super) fn push_used_batch(&mut self, used: impl Iterator<Item = Used>) {
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

    /// Moves the used position past `slots` slots that were given back.
    #[inline(always)]
    fn pass(&mut self, slots: u16) {
        self.used.advance(slots, self.setup.size);
        self.held -= slots;
        self.unpublished += slots;
    }

    /// Returns whether a batch of chains is given back by the id of the last, in the slot of the first: with
    /// IN_ORDER, for chains that the device reads (2.8.7).
    #[inline(always)]
    pub(super) fn uses_batching(&self) -> bool {
        self.access == DeviceAccess::Read && self.has(IN_ORDER)
    }

    /// Records that the device no longer has a buffer.
    pub(super) fn unmark(&mut self, id: u16) {
        if let Some(mark) = self.taken.get_mut(usize::from(id)) {
            *mark = 0;
        }
    }
}

/// Returns the second word of a used descriptor.
#[inline(always)]
fn used_word(marks: u16, id: u16, written: u32) -> u64 {
    let flags = marks | if written > 0 { flags::WRITE } else { 0 };
    u64::from(written) | u64::from(id) << 32 | u64::from(flags) << 48
}
