//! A bounded lock-free ring between one producer and one consumer.
//!
//! The producer owns the tail, the consumer the head. Both count up without wrapping at the ring's size, and
//! are masked on use. Each side keeps a copy of the other's index and reloads it only when the copy shows too
//! few items or too little room, so that the cache lines move at most once per burst.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use ringpass_memory::{Access, prefetch};

use sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};

/// Atomics and cells, replaced by loom's when interleavings are explored (`--cfg loom`).
mod sync {
    #[cfg(loom)]
    pub(super) use loom::{
        cell::UnsafeCell,
        sync::Arc,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    };
    #[cfg(not(loom))]
    pub(super) use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    /// `std`'s cell with loom's interface.
    #[cfg(not(loom))]
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    #[cfg(not(loom))]
    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Distance in slots at which slots are prefetched that will be staged.
const AHEAD: usize = 32;

/// A value on cache lines of its own. Two lines, because the processor prefetches them in pairs.
#[repr(align(128))]
struct Line<T>(T);

struct Shared<T> {
    /// Index of the next item to take.
    head: Line<AtomicUsize>,
    /// Index of the next item to put. `tail - head` items are in the ring, never more than it has slots.
    tail: Line<AtomicUsize>,
    /// Whether one of the two ends was dropped.
    closed: Line<AtomicBool>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: the producer alone accesses slots outside `head..tail`, the consumer alone those inside. A slot
// changes sides by a Release store of an index and an Acquire load of it. `T: Send`, as items move between
// threads.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: `T: Send`, so the items may be dropped on whichever thread drops the last of the two ends.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, index: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[index & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut head, tail) = (self.head.0.load(Ordering::Relaxed), self.tail.0.load(Ordering::Relaxed));
        while head != tail {
            // SAFETY: both ends are dropped, and `Arc` orders their last accesses before this. Slots in
            // `head..tail` are initialised, as `Drain::drop` has moved the head past all items taken, and this
            // loop visits each once.
            self.slot(head).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// Creates a ring of at least `slots` slots, rounded up to a power of two.
pub(crate) fn ring<T: Send>(slots: usize) -> (Producer<T>, Consumer<T>) {
    let slots = slots.max(1).next_power_of_two();
    let shared = Arc::new(Shared {
        head: Line(AtomicUsize::new(0)),
        tail: Line(AtomicUsize::new(0)),
        closed: Line(AtomicBool::new(false)),
        slots: (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    (Producer { shared: shared.clone(), tail: 0, head: 0, staged: 0 }, Consumer { shared, head: 0, tail: 0 })
}

/// The end that puts items in.
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    /// The consumer's index when it was last loaded.
    head: usize,
    /// Number of items behind the tail that were written and not published.
    staged: usize,
}

impl<T> Producer<T> {
    /// Returns how many of `want` items there is room for.
    #[inline]
    pub(crate) fn room(&mut self, want: usize) -> usize {
        let slots = self.shared.slots.len();
        let mut room = slots - self.tail.wrapping_sub(self.head);
        if room < want {
            // Acquire: the consumer has finished reading the slots before these are written again.
            self.head = self.shared.head.0.load(Ordering::Acquire);
            room = slots - self.tail.wrapping_sub(self.head);
        }
        room.min(want)
    }

    /// Puts items in, then makes them visible to the consumer together. Puts at most as many as the last
    /// [`room`](Self::room) found space for, and takes no further ones from the iterator.
    #[inline]
    pub(crate) fn put(&mut self, items: impl IntoIterator<Item = T>) {
        let room = self.shared.slots.len() - self.tail.wrapping_sub(self.head);
        let mut items = items.into_iter();
        let mut tail = self.tail;
        while tail.wrapping_sub(self.tail) < room
            && let Some(item) = items.next()
        {
            self.shared.slot(tail).with_mut(|slot| {
                // SAFETY: the loop's bound keeps the slot outside `head..tail`, where only the producer
                // accesses it. There is one producer, borrowed mutably.
                unsafe { (*slot).write(item) };
            });
            tail = tail.wrapping_add(1);
        }
        (self.tail, self.staged) = (tail, 0);
        // Release: a consumer that sees the new tail sees the items.
        self.shared.tail.0.store(tail, Ordering::Release);
    }

    /// Returns whether the consumer was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.0.load(Ordering::Relaxed)
    }
}

/// Items without a destructor may be put in before it is known whether the consumer is to get them.
impl<T: Copy> Producer<T> {
    /// Writes an item behind those that are in the ring and those that are staged. The consumer does not see it before [`publish`](Self::publish).
    ///
    /// # Panics
    /// If the last [`room`](Self::room) found no space for it.
    #[inline]
    pub(crate) fn stage(&mut self, item: T) {
        let place = self.tail.wrapping_add(self.staged);
        assert!(place.wrapping_sub(self.head) < self.shared.slots.len());
        self.shared.slot(place).with_mut(|slot| {
            // SAFETY: the assertion keeps the slot outside `head..tail`, where only the producer accesses it. There is one
            // producer, borrowed mutably. What the slot had before needs no drop, as `T: Copy`.
            unsafe { (*slot).write(item) };
        });
        // The other core has read these slots and has their cache lines; stores alone would wait for one after the other.
        self.shared.slot(place.wrapping_add(AHEAD)).with(|slot| prefetch(slot, Access::ReadWrite));
        self.staged += 1;
    }

    /// Returns the number of staged items.
    #[inline]
    pub(crate) fn staged(&self) -> usize {
        self.staged
    }

    /// Makes the first `items` staged items visible to the consumer together, and forgets the others.
    ///
    /// # Panics
    /// If fewer are staged.
    #[inline]
    pub(crate) fn publish(&mut self, items: usize) {
        assert!(items <= self.staged);
        self.staged = 0;
        self.tail = self.tail.wrapping_add(items);
        // Release: a consumer that sees the new tail sees the items.
        self.shared.tail.0.store(self.tail, Ordering::Release);
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Release: a consumer that sees the flag sees the last items too.
        self.shared.closed.0.store(true, Ordering::Release);
    }
}

/// The end that takes items out.
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// The producer's index when it was last loaded.
    tail: usize,
}

impl<T> Consumer<T> {
    /// Returns how many of `want` items are in the ring.
    #[inline]
    pub(crate) fn ready(&mut self, want: usize) -> usize {
        let mut ready = self.tail.wrapping_sub(self.head);
        if ready < want {
            // Acquire: the items' writes happen before they are read.
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
            ready = self.tail.wrapping_sub(self.head);
        }
        ready.min(want)
    }

    /// Takes up to `want` items. Their slots are returned to the producer together, when the iterator is
    /// dropped.
    #[inline]
    pub(crate) fn take(&mut self, want: usize) -> Drain<'_, T> {
        let end = self.head.wrapping_add(self.ready(want));
        Drain { consumer: self, end }
    }

    /// Returns the next item without taking it.
    pub(crate) fn peek(&mut self) -> Option<&T> {
        if self.ready(1) == 0 {
            return None;
        }
        // SAFETY: `ready` found the slot inside `head..tail`, so it is initialised and only the consumer
        // accesses it until the head moves. That needs a mutable borrow of the consumer, which this reference
        // excludes.
        Some(self.shared.slot(self.head).with(|slot| unsafe { (*slot).assume_init_ref() }))
    }

    /// Returns whether the producer was dropped. The items that are [`ready`](Self::ready) after `true` are the
    /// last ones.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.0.load(Ordering::Acquire)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.shared.closed.0.store(true, Ordering::Relaxed);
    }
}

/// An iterator that takes items out; see [`Consumer::take`].
pub(crate) struct Drain<'a, T> {
    consumer: &'a mut Consumer<T>,
    end: usize,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.consumer.head == self.end {
            return None;
        }
        // SAFETY: `take` found the slots up to `end` inside `head..tail`, so this one is initialised and only
        // the consumer accesses it. The next line moves the head past it, so it is read once.
        let item = self.consumer.shared.slot(self.consumer.head).with(|slot| unsafe { (*slot).assume_init_read() });
        self.consumer.head = self.consumer.head.wrapping_add(1);
        Some(item)
    }
}

impl<T> Drop for Drain<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: the slots are read before the producer writes to them again.
        self.consumer.shared.head.0.store(self.consumer.head, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::ring;

    #[derive(Clone, Debug)]
    enum Step {
        Put(usize),
        Drain(usize),
        Peek,
    }

    proptest! {
        /// The ring behaves as a bounded `VecDeque`.
        #[test]
        #[cfg_attr(miri, ignore = "takes hours; the other tests show miri every access")]
        fn behaves_as_a_queue(
            slots in 1..40usize,
            steps in prop::collection::vec(
                prop_oneof![(0..50usize).prop_map(Step::Put), (0..50usize).prop_map(Step::Drain), Just(Step::Peek)],
                0..200,
            ),
        ) {
            let (mut producer, mut consumer) = ring(slots);
            let slots = slots.next_power_of_two();
            let (mut model, mut next) = (VecDeque::new(), 0u32);
            for step in steps {
                match step {
                    Step::Put(want) => {
                        let room = producer.room(want);
                        prop_assert_eq!(room, want.min(slots - model.len()));
                        producer.put(next..next + want as u32);
                        model.extend(next..next + room as u32);
                        next += room as u32;
                    }
                    Step::Drain(want) => {
                        let taken: Vec<u32> = consumer.take(want).collect();
                        let expected: Vec<u32> = model.drain(..want.min(model.len())).collect();
                        prop_assert_eq!(taken, expected);
                    }
                    Step::Peek => prop_assert_eq!(consumer.peek(), model.front()),
                }
            }
        }
    }

    #[test]
    fn staged_items_are_seen_when_they_are_published() {
        let (mut producer, mut consumer) = ring(4);
        for round in 0..10 {
            assert_eq!(producer.room(4), 4);
            (0..4).for_each(|item| producer.stage(round * 10 + item));
            assert_eq!((consumer.ready(4), producer.staged()), (0, 4));
            producer.publish(3);
            assert_eq!(consumer.take(4).collect::<Vec<_>>(), [round * 10, round * 10 + 1, round * 10 + 2]);
        }
        let full =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (0..5).for_each(|item| producer.stage(item))));
        assert!(full.is_err());
    }

    #[test]
    fn drops_what_is_left_once() {
        let item = Arc::new(());
        let (mut producer, mut consumer) = ring(8);
        producer.put(std::iter::repeat_n(item.clone(), 6));
        drop(consumer.take(4).next());
        assert_eq!(Arc::strong_count(&item), 1 + 5);
        drop(producer);
        assert!(consumer.is_closed() && consumer.ready(8) == 5);
        drop(consumer);
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn threads_keep_the_order() {
        const ITEMS: u64 = if cfg!(miri) { 500 } else { 2_000_000 };
        let (mut producer, mut consumer) = ring(64);
        let sender = std::thread::spawn(move || {
            let mut next = 0;
            while next < ITEMS {
                let room = producer.room((ITEMS - next).min(32) as usize) as u64;
                producer.put(next..next + room);
                next += room;
                std::hint::spin_loop();
            }
        });
        let mut expected = 0;
        while expected < ITEMS {
            for item in consumer.take(32) {
                assert_eq!(item, expected);
                expected += 1;
            }
        }
        sender.join().expect("the sender does not panic");
        assert_eq!(consumer.ready(1), 0);
    }
}

/// All interleavings of a producer and a consumer:
/// `RUSTFLAGS="--cfg loom" cargo test -p ringpass-host-ports --lib ring`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::{Arc, ring};

    #[test]
    fn items_arrive_once_and_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(2);
            let sender = thread::spawn(move || {
                let mut next = 0;
                for _ in 0..3 {
                    let room = producer.room(2) as u32;
                    producer.put(next..(next + room).min(3));
                    next = (next + room).min(3);
                }
                next
            });
            let mut received = 0;
            for _ in 0..3 {
                for item in consumer.take(2) {
                    assert_eq!(item, received);
                    received += 1;
                }
            }
            let sent = sender.join().expect("the sender does not panic");
            for item in consumer.take(2) {
                assert_eq!(item, received);
                received += 1;
            }
            assert_eq!(received, sent);
        });
    }

    #[test]
    fn published_items_arrive_and_others_do_not() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(2);
            let sender = thread::spawn(move || {
                for item in 0..2 {
                    if producer.room(2) == 2 {
                        producer.stage(item);
                        producer.stage(9);
                        producer.publish(1);
                    }
                }
            });
            let mut received = Vec::new();
            (0..3).for_each(|_| received.extend(consumer.take(2)));
            sender.join().expect("the sender does not panic");
            received.extend(consumer.take(2));
            assert!([&[0][..], &[0, 1]].contains(&&received[..]), "{received:?}");
        });
    }

    #[test]
    fn a_closed_ring_has_shown_all_its_items() {
        loom::model(|| {
            let item = Arc::new(());
            let (mut producer, mut consumer) = ring(2);
            let sent = item.clone();
            let sender = thread::spawn(move || producer.put([sent]));
            if consumer.is_closed() {
                assert_eq!(consumer.ready(1), 1);
            }
            sender.join().expect("the sender does not panic");
            drop(consumer);
            assert_eq!(Arc::strong_count(&item), 1);
        });
    }
}
