//! Free descriptors of a queue whose packets come back out of order or take several descriptors each.

use std::collections::VecDeque;

/// The free descriptors, in the order in which they came back, and those of the packets that the device has.
/// Because of this order, descriptors that are posted together are mostly adjacent, if the device roughly keeps
/// the order.
pub(super) struct FreeList {
    free: VecDeque<u16>,
    /// Number of descriptors of each packet, by the packet's number; 0 if the device does not have it.
    counts: Box<[u16]>,
    /// The next descriptor of the same packet, by descriptor number.
    next: Box<[u16]>,
}

impl FreeList {
    /// Creates a list in which the descriptors `posted` are in use, by one packet each.
    pub(super) fn new(size: u16, posted: impl Iterator<Item = u16>) -> Box<Self> {
        let mut counts = vec![0; size.into()].into_boxed_slice();
        let mut behind = 0;
        posted.for_each(|number| {
            counts[usize::from(number)] = 1;
            behind = number + 1;
        });
        // All others are free, in the order in which they would have been posted next.
        let mut free = VecDeque::with_capacity(size.into());
        free.extend((behind..size).chain(0..behind).filter(|&number| counts[usize::from(number)] == 0));
        Box::new(Self { free, next: vec![0; size.into()].into(), counts })
    }

    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Takes `count` free descriptors for a packet and passes each to `each`, in order, with the next one.
    /// Returns the first one's number, which is the packet's number.
    ///
    /// # Panics
    /// If fewer than `count` are free, or `count` is 0 and none is free.
    pub(super) fn take(&mut self, count: u16, mut each: impl FnMut(u16, Option<u16>)) -> u16 {
        let first = self.next_free();
        for left in (0..count).rev() {
            let number = self.free.pop_front().expect("a free descriptor");
            let next = (left > 0).then(|| self.next_free());
            self.next[usize::from(number)] = next.unwrap_or_default();
            each(number, next);
        }
        self.counts[usize::from(first)] = count;
        first
    }

    /// Returns the number of the next packet.
    ///
    /// # Panics
    /// If no descriptor is free.
    pub(super) fn next_free(&self) -> u16 {
        *self.free.front().expect("a free descriptor")
    }

    /// Takes one number for a packet of `count` descriptors. The caller accounts for the descriptors
    /// themselves.
    pub(super) fn take_number(&mut self, count: u16) -> u16 {
        let number = self.free.pop_front().expect("a free number");
        self.counts[usize::from(number)] = count;
        number
    }

    /// Frees a packet's descriptors. Returns how many there were; `None` if the device does not have the
    /// packet.
    pub(super) fn give(&mut self, first: u32) -> Option<u16> {
        let count = std::mem::take(self.counts.get_mut(first as usize)?);
        let mut number = first as u16;
        for _ in 0..count {
            self.free.push_back(number);
            number = self.next[usize::from(number)];
        }
        Some(count).filter(|&count| count > 0)
    }

    /// Frees a number taken by [`take_number`](Self::take_number). Returns the packet's number of descriptors;
    /// `None` if the device does not have the packet.
    pub(super) fn give_number(&mut self, number: u32) -> Option<u16> {
        let count = std::mem::take(self.counts.get_mut(number as usize)?);
        if count > 0 {
            self.free.push_back(number as u16);
        }
        Some(count).filter(|&count| count > 0)
    }

    /// Returns the number of descriptors of a packet; 0 if the device does not have it.
    pub(super) fn count(&self, number: u16) -> u16 {
        self.counts.get(usize::from(number)).copied().unwrap_or(0)
    }

    /// Returns the numbers of the packets that the device has.
    pub(super) fn posted(&self) -> impl Iterator<Item = usize> {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(number, _)| number)
    }
}
