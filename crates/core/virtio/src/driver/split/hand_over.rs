//! Hands over a split queue whose device has died.

use std::sync::atomic::Ordering;

use super::{Broken, RING, Split};

impl Split {
    /// Rewrites the available ring after its first `ready` entries, which were used, so that it lists the
    /// packets that were not. If the device used packets in another order, those entries name some of the used
    /// ones.
    pub(super) fn make_available_again(&mut self, ready: u16) -> Result<(), Broken> {
        let name = |queue: &Self, n| queue.used[queue.place(queue.head.wrapping_add(n))][0].load(Ordering::Relaxed);
        let in_order = |n| name(self, n) == self.place(self.head.wrapping_add(n)) as u32;
        if self.config.in_order || self.free_list.is_none() && (0..ready).all(in_order) {
            return Ok(());
        }
        let mut left = vec![false; self.config.size.into()];
        self.use_free_list().posted().for_each(|number| left[number] = true);
        for number in (0..ready).map(|n| name(self, n)) {
            if !left.get_mut(number as usize).is_some_and(std::mem::take) {
                return Err(Broken::NotPosted(number));
            }
        }
        // In the order in which they were posted; the entries of the newest packets can still be read from the
        // ring.
        let place = |n| RING + self.place(self.tail.wrapping_sub(n));
        let newest = (1..=self.config.size).map(|n| self.available[place(n)].load(Ordering::Relaxed));
        let newest = newest.filter(|&number| left.get_mut(usize::from(number)).is_some_and(std::mem::take));
        let mut numbers: Vec<u16> = newest.collect();
        numbers.extend((0..self.config.size).filter(|&number| left[usize::from(number)]));
        for (number, n) in numbers.into_iter().zip(1..) {
            self.available[place(n)].store(number, Ordering::Relaxed);
        }
        Ok(())
    }
}
