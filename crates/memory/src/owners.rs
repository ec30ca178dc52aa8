//! Whose each of some numbered buffers is: one word each, beside the buffers.

use crate::sync::{AtomicU8, Ordering};

/// Nobody's.
pub(crate) const FREE: u8 = 0;
/// Of somebody outside the pool, such as a program that has mapped the memory.
pub(crate) const THEIRS: u8 = 1;
/// The pool's: in its depot, a cache, a ring or a packet.
pub(crate) const OURS: u8 = 2;

/// The words. What is ours was made so by a [`claim`](Self::claim), which one thread wins; whoever did owns the buffer until it
/// [gives](Self::give) it.
pub(crate) struct Owners(Box<[AtomicU8]>);

impl Owners {
    /// Of so many buffers, all free.
    pub(crate) fn new(buffers: usize) -> Self {
        Self((0..buffers).map(|_| AtomicU8::new(FREE)).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many are somebody's.
    pub(crate) fn count(&self, of: u8) -> usize {
        self.0.iter().filter(|word| word.load(Ordering::Acquire) == of).count()
    }

    /// Changes hands, if the buffer is there and is `from`'s. What its last owner did in it happens before.
    #[inline]
    pub(crate) fn change(&self, buffer: u32, from: u8, to: u8) -> bool {
        let word = self.0.get(buffer as usize);
        word.is_some_and(|word| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Theirs becomes ours; `false` if there is no such buffer, it is free or ours already.
    #[inline]
    pub(crate) fn claim(&self, buffer: u32) -> bool {
        self.change(buffer, THEIRS, OURS)
    }

    /// Ours becomes somebody else's. A store does: nobody but its owner changes what is ours.
    #[inline]
    pub(crate) fn give(&self, buffer: u32, to: u8) {
        debug_assert_eq!(self.0[buffer as usize].load(Ordering::Relaxed), OURS);
        self.0[buffer as usize].store(to, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Both {
        owners: Owners,
        /// What lies in buffers: touched by whoever has one that is ours, as by a card or a packet.
        content: Vec<UnsafeCell<u32>>,
    }

    impl Both {
        /// Writes to a buffer that is this thread's.
        fn touch(&self, buffer: u32) {
            // SAFETY: loom finds out whether somebody else does at the same time.
            self.content[buffer as usize].with_mut(|content| unsafe { *content += 1 });
        }

        /// As a joint: exchanges the buffers of slots for its own. Returns that in the end.
        fn exchange(&self, mut own: u32, slots: &[u32]) -> u32 {
            for &slot in slots {
                self.touch(own);
                if self.owners.claim(slot) {
                    self.owners.give(own, THEIRS);
                    own = slot;
                }
                self.touch(own);
            }
            own
        }
    }

    /// Two joints with a buffer each, rings that name what a program has, and a region that takes it back at the same time.
    fn explore(slots: [&'static [u32]; 2], released: &'static [u32]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let both = Both { owners: Owners::new(4), content: (0..4).map(UnsafeCell::new).collect() };
            [0, 1].into_iter().for_each(|buffer| assert!(both.owners.change(buffer, FREE, OURS)));
            [2, 3].into_iter().for_each(|buffer| assert!(both.owners.change(buffer, FREE, THEIRS)));
            let both = Arc::new(both);
            let joints = [0, 1].map(|own: u32| {
                let both = both.clone();
                thread::spawn(move || both.exchange(own, slots[own as usize]))
            });
            let free = released.iter().filter(|&&buffer| both.owners.change(buffer, THEIRS, FREE)).count();
            let ours = joints.map(|joint| joint.join().unwrap());
            assert_ne!(ours[0], ours[1], "two joints have one buffer");
            ours.into_iter().for_each(|own| both.owners.give(own, OURS));
            let books = [FREE, THEIRS, OURS].map(|of| both.owners.count(of));
            assert_eq!(books, [free, 2 - free, 2]);
        });
    }

    #[test]
    fn loom_a_buffer_named_in_two_rings() {
        explore([&[2], &[2]], &[]);
        explore([&[2, 2], &[2, 0]], &[]);
    }

    #[test]
    fn loom_buffers_that_go_from_ring_to_ring() {
        explore([&[2, 1], &[0, 3]], &[]);
    }

    #[test]
    fn loom_a_ring_that_is_released_meanwhile() {
        explore([&[2, 3], &[3]], &[2, 0, 3]);
    }
}
