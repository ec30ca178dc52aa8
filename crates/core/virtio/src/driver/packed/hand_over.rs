//! Hands over a packed queue whose device has died.

use std::sync::atomic::Ordering;

use super::super::pieces::{Piece, PieceLayout, Ring};
use super::{Broken, DeviceAccess, Packed, WrapIndex};
use crate::layout::flags;

impl Packed {
    /// Returns the slot after everything that the device has returned, and the numbers of the packets that it
    /// has not returned; in the order in which they were posted, as long as the queue is in order.
    pub(super) fn not_returned(&mut self) -> Result<(WrapIndex, Vec<u16>), Broken> {
        let (size, broken) = (self.config.size, self.broken);
        broken.map_or(Ok(()), Err)?;
        let mut slot = self.head;
        let mut left = self.posted;
        let mut returned = vec![false; size.into()];
        if let Some(batch) = self.batch {
            slot.advance(batch.left, size);
            left -= batch.left;
        }
        while left > 0 {
            let word = self.descriptors[usize::from(slot.index)][1].load(Ordering::Acquire);
            let (number, whose) = ((word >> 32) as u16, (word >> 48) as u16);
            if whose & (flags::AVAIL | flags::USED) != slot.used() {
                break;
            }
            let wrong = Broken::NotPosted(number.into());
            let (packets, slots) = if self.config.in_order {
                let before = (u32::from(number) + u32::from(size) - u32::from(slot.index)) % u32::from(size);
                let right = number < size && before < u32::from(left);
                let batch = right.then_some(before as u16 + 1).ok_or(wrong)?;
                (batch, batch)
            } else {
                if number != slot.index {
                    self.use_free_list();
                }
                let slots = self.free_list.as_ref().map_or(1, |free_list| free_list.count(number));
                let again = returned.get_mut(usize::from(number)).is_none_or(|done| std::mem::replace(done, true));
                (slots > 0 && !again).then_some((1, slots)).ok_or(wrong)?
            };
            slot.advance(slots, size);
            left -= packets;
        }
        let mut at = slot;
        let in_order = std::iter::repeat_with(|| {
            let index = at.index;
            at.advance(1, size);
            index
        });
        let numbers = match &self.free_list {
            None => in_order.take(left.into()).collect(),
            Some(free_list) => {
                free_list.posted().filter(|&number| !returned[number]).map(|number| number as u16).collect()
            }
        };
        Ok((slot, numbers))
    }

    /// Writes packets into the slots from `next` on, which belong to them. If the device used packets in
    /// another order, or died while it marked several as used, these slots may hold other packets' descriptors.
    pub(super) fn make_available_again(&mut self, access: DeviceAccess, next: WrapIndex, numbers: &[u16]) {
        let Self { tail, slots, unpublished, posted, .. } = *self;
        self.tail = next;
        for &number in numbers {
            // SAFETY: the device has this packet: `not_returned` lists only posted packets that did not come
            // back. So it is initialised.
            let packet = unsafe { self.packets[usize::from(number)].assume_init_ref() };
            let cut = PieceLayout::segments(access, &self.config);
            let table = match &self.tables {
                Some(tables) if cut.pieces(packet).count() > 1 => tables.fill(number.into(), cut, packet, Ring::Packed),
                _ => None,
            };
            let pieces: Vec<Piece> = table.map_or_else(|| cut.pieces(packet).collect(), |table| vec![table]);
            self.write(pieces.into_iter(), number);
        }
        debug_assert!(self.tail == tail, "the same slots");
        (self.tail, self.slots, self.unpublished, self.posted) = (tail, slots, unpublished, posted);
    }
}
