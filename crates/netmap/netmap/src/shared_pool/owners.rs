//! Per-buffer ownership: free, external or pool; one atomic byte for each buffer, kept outside of the buffers.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering};

/// The buffer is free: it belongs to nobody.
pub(super) const FREE: u8 = 0;
/// The buffer belongs to somebody outside the pool, such as a program that has mapped the memory.
pub(super) const EXTERNAL: u8 = 1;
/// The buffer belongs to the pool: it is in its depot, a cache, a ring or a packet.
pub(super) const POOL: u8 = 2;

/// The owners of all buffers. A buffer becomes the pool's by a [`claim`](Self::claim), which one thread wins.
/// That thread owns the buffer until it [gives](Self::give) it away.
pub(super) struct Owners(Box<[AtomicU8]>);

impl Owners {
    /// Creates the owners of `buffers` buffers, all free.
    pub(super) fn new(buffers: usize) -> Self {
        Self((0..buffers).map(|_| AtomicU8::new(FREE)).collect())
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of buffers with this owner.
    pub(super) fn count(&self, of: u8) -> usize {
        self.0.iter().filter(|word| word.load(Ordering::Acquire) == of).count()
    }

    /// Changes the owner, if the buffer exists and belongs to `from`, and returns whether it did. Accesses of
    /// the previous owner happen before (Acquire), those of this one before the next owner's (Release).
    #[inline]
    pub(super) fn change(&self, buffer: u32, from: u8, to: u8) -> bool {
        let word = self.0.get(buffer as usize);
        word.is_some_and(|word| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Takes an external buffer for the pool. Returns `false` if it does not exist, is free or is the pool's already.
    #[inline]
    pub(super) fn claim(&self, buffer: u32) -> bool {
        self.change(buffer, EXTERNAL, POOL)
    }

    /// Gives one of the pool's buffers away. A store is enough, because only its owner changes the state of
    /// such a buffer.
    #[inline]
    pub(super) fn give(&self, buffer: u32, to: u8) {
        debug_assert_eq!(self.0[buffer as usize].load(Ordering::Relaxed), POOL);
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
        /// Content of the buffers. A buffer's content is accessed by the thread that has claimed it, as a card
        /// or a packet would.
        content: Vec<UnsafeCell<u32>>,
    }

    impl Both {
        /// Writes to a buffer that belongs to this thread.
        fn touch(&self, buffer: u32) {
            // SAFETY: loom fails the test if another thread accesses the content at the same time.
            self.content[buffer as usize].with_mut(|content| unsafe { *content += 1 });
        }

        /// Acts as a forwarder: exchanges its own buffer for the one that each slot names. Returns the buffer
        /// it has in the end.
        fn exchange(&self, mut own: u32, slots: &[u32]) -> u32 {
            for &slot in slots {
                self.touch(own);
                if self.owners.claim(slot) {
                    self.owners.give(own, EXTERNAL);
                    own = slot;
                }
                self.touch(own);
            }
            own
        }
    }

    /// Runs two forwarders with a buffer each, rings that name a program's buffers, and a region that frees
    /// external buffers at the same time.
    fn explore(slots: [&'static [u32]; 2], released: &'static [u32]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let both = Both { owners: Owners::new(4), content: (0..4).map(UnsafeCell::new).collect() };
            [0, 1].into_iter().for_each(|buffer| assert!(both.owners.change(buffer, FREE, POOL)));
            [2, 3].into_iter().for_each(|buffer| assert!(both.owners.change(buffer, FREE, EXTERNAL)));
            let both = Arc::new(both);
            let joints = [0, 1].map(|own: u32| {
                let both = both.clone();
                thread::spawn(move || both.exchange(own, slots[own as usize]))
            });
            let free = released.iter().filter(|&&buffer| both.owners.change(buffer, EXTERNAL, FREE)).count();
            let ours = joints.map(|joint| joint.join().unwrap());
            assert_ne!(ours[0], ours[1], "two joints have one buffer");
            ours.into_iter().for_each(|own| both.owners.give(own, POOL));
            let owner_counts = [FREE, EXTERNAL, POOL].map(|of| both.owners.count(of));
            assert_eq!(owner_counts, [free, 2 - free, 2]);
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
