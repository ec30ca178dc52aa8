//! Which descriptors are free, once they no longer come back in the order in which they were posted, or packets take
//! several.

use std::collections::VecDeque;

/// Descriptors by their number: those of packets that the device has, and the free ones in the order in which they came
/// back. So those that are posted together still mostly lie side by side, if the device keeps to some order.
pub(super) struct Loose {
    free: VecDeque<u16>,
    /// By the number that a packet goes by: how many descriptors it takes; 0 if the device does not have it.
    counts: Box<[u16]>,
    /// By number: the next descriptor of the same packet.
    next: Box<[u16]>,
}

impl Loose {
    /// With these descriptors posted, a packet each.
    pub(super) fn new(size: u16, posted: impl Iterator<Item = u16>) -> Box<Self> {
        let mut counts = vec![0; size.into()].into_boxed_slice();
        let mut behind = 0;
        posted.for_each(|number| {
            counts[usize::from(number)] = 1;
            behind = number + 1;
        });
        // All of them, in the order in which they were to come.
        let mut free = VecDeque::with_capacity(size.into());
        free.extend((behind..size).chain(0..behind).filter(|&number| counts[usize::from(number)] == 0));
        Box::new(Self { free, next: vec![0; size.into()].into(), counts })
    }

    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Takes free descriptors for a packet of so many, and hands them out in order. The packet goes by the first one's
    /// number, which is returned.
    ///
    /// # Panics
    /// If there are not as many, or none is asked for.
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

    /// The number that the next packet goes by.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn next_free(&self) -> u16 {
        *self.free.front().expect("a free descriptor")
    }

    /// Takes one number for a packet of `count` descriptors, which are accounted for elsewhere.
    pub(super) fn take_number(&mut self, count: u16) -> u16 {
        let number = self.free.pop_front().expect("a free number");
        self.counts[usize::from(number)] = count;
        number
    }

    /// Gives a packet's descriptors back; `None` if the device does not have it. Returns how many.
    pub(super) fn give(&mut self, first: u32) -> Option<u16> {
        let count = std::mem::take(self.counts.get_mut(first as usize)?);
        let mut number = first as u16;
        for _ in 0..count {
            self.free.push_back(number);
            number = self.next[usize::from(number)];
        }
        Some(count).filter(|&count| count > 0)
    }

    /// As `give`, for a number of `take_number`.
    pub(super) fn give_number(&mut self, number: u32) -> Option<u16> {
        let count = std::mem::take(self.counts.get_mut(number as usize)?);
        if count > 0 {
            self.free.push_back(number as u16);
        }
        Some(count).filter(|&count| count > 0)
    }

    /// How many descriptors a packet takes; 0 if the device does not have it.
    pub(super) fn count(&self, number: u16) -> u16 {
        self.counts.get(usize::from(number)).copied().unwrap_or(0)
    }

    /// The numbers of the packets that the device has.
    pub(super) fn posted(&self) -> impl Iterator<Item = usize> {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(number, _)| number)
    }
}
