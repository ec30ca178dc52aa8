//! Which descriptors are free, once they no longer come back in the order in which they were posted, or packets take
//! several.

/// Descriptors by their number: those of packets that the device has, and a stack of the free ones.
pub(super) struct Loose {
    free: Vec<u16>,
    /// By the number that a packet goes by: how many descriptors it takes; 0 if the device does not have it.
    counts: Box<[u16]>,
    /// By number: the next descriptor of the same packet.
    next: Box<[u16]>,
}

impl Loose {
    /// With these descriptors posted, a packet each.
    pub(super) fn new(size: u16, posted: impl Iterator<Item = u16>) -> Box<Self> {
        let mut counts = vec![0; size.into()].into_boxed_slice();
        posted.for_each(|number| counts[usize::from(number)] = 1);
        let free = (0..size).rev().filter(|&number| counts[usize::from(number)] == 0).collect();
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
        let start = self.free.len() - usize::from(count);
        let first = self.next_free();
        for at in (start..self.free.len()).rev() {
            let number = self.free[at];
            let next = (at > start).then(|| self.free[at - 1]);
            self.next[usize::from(number)] = next.unwrap_or_default();
            each(number, next);
        }
        self.free.truncate(start);
        self.counts[usize::from(first)] = count;
        first
    }

    /// The number that the next packet goes by.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn next_free(&self) -> u16 {
        *self.free.last().expect("a free descriptor")
    }

    /// Takes one number for a packet of `count` descriptors, which are accounted for elsewhere.
    pub(super) fn take_number(&mut self, count: u16) -> u16 {
        let number = self.free.pop().expect("a free number");
        self.counts[usize::from(number)] = count;
        number
    }

    /// Gives a packet's descriptors back; `None` if the device does not have it. Returns how many.
    pub(super) fn give(&mut self, first: u32) -> Option<u16> {
        let count = std::mem::take(self.counts.get_mut(first as usize)?);
        let mut number = first as u16;
        for _ in 0..count {
            self.free.push(number);
            number = self.next[usize::from(number)];
        }
        Some(count).filter(|&count| count > 0)
    }

    /// As `give`, for a number of `take_number`.
    pub(super) fn give_number(&mut self, number: u32) -> Option<u16> {
        let count = std::mem::take(self.counts.get_mut(number as usize)?);
        if count > 0 {
            self.free.push(number as u16);
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
