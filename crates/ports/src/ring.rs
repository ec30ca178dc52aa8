//! A bounded lock-free ring between one producer and one consumer.
//!
//! The producer owns the tail, the consumer the head; both count up for ever and are masked on use. Each keeps a copy of
//! the other's index and looks again only when the copy says that there is too little: the cache lines move once a
//! burst or less.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};

/// Atomics and cells, exchanged for loom's when interleavings are explored (`--cfg loom`).
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

    /// `std`'s cell behind loom's interface.
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

/// Two lines, because the processor fetches them in pairs.
#[repr(align(128))]
struct Line<T>(T);

struct Shared<T> {
    /// Where the consumer takes next.
    head: Line<AtomicUsize>,
    /// Where the producer puts next. `tail - head` items are in the ring, never more than it has slots.
    tail: Line<AtomicUsize>,
    /// One of the two ends was dropped.
    closed: Line<AtomicBool>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is accessed by the producer alone while it is outside `head..tail`, by the consumer alone while it is
// inside; it changes sides by a Release store of an index and an Acquire load of it. Items move between threads.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: the last of the two ends drops the items, on its thread.
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
            // SAFETY: both ends are gone (`Arc` orders their last accesses before this); items in `head..tail` are
            // initialised, and each is dropped once.
            self.slot(head).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// A ring of at least `slots` (rounded up to a power of two).
pub(crate) fn ring<T: Send>(slots: usize) -> (Producer<T>, Consumer<T>) {
    let slots = slots.max(1).next_power_of_two();
    let shared = Arc::new(Shared {
        head: Line(AtomicUsize::new(0)),
        tail: Line(AtomicUsize::new(0)),
        closed: Line(AtomicBool::new(false)),
        slots: (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    (Producer { shared: shared.clone(), tail: 0, head: 0 }, Consumer { shared, head: 0, tail: 0 })
}

/// The end that puts items in.
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    /// The consumer's index when it was last looked at.
    head: usize,
}

impl<T> Producer<T> {
    /// How many of `want` items there is room for.
    #[inline]
    pub(crate) fn room(&mut self, want: usize) -> usize {
        let slots = self.shared.slots.len();
        let mut room = slots - self.tail.wrapping_sub(self.head);
        if room < want {
            // Acquire: the consumer has read the slots before these are written again.
            self.head = self.shared.head.0.load(Ordering::Acquire);
            room = slots - self.tail.wrapping_sub(self.head);
        }
        room.min(want)
    }

    /// Puts items in and then shows them to the consumer, together: as many as the last [`room`](Self::room) found
    /// space for at most. Others are not taken from the iterator.
    #[inline]
    pub(crate) fn put(&mut self, items: impl IntoIterator<Item = T>) {
        let room = self.shared.slots.len() - self.tail.wrapping_sub(self.head);
        let mut items = items.into_iter();
        let mut tail = self.tail;
        while tail.wrapping_sub(self.tail) < room
            && let Some(item) = items.next()
        {
            self.shared.slot(tail).with_mut(|slot| {
                // SAFETY: outside `head..tail`, so the producer's; there is one producer, borrowed mutably.
                unsafe { (*slot).write(item) };
            });
            tail = tail.wrapping_add(1);
        }
        self.tail = tail;
        // Release: the consumer that sees the tail sees the items.
        self.shared.tail.0.store(tail, Ordering::Release);
    }

    /// Whether the consumer was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.0.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Release: a consumer that sees this sees the last items too.
        self.shared.closed.0.store(true, Ordering::Release);
    }
}

/// The end that takes items out.
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// The producer's index when it was last looked at.
    tail: usize,
}

impl<T> Consumer<T> {
    /// How many of `want` items are there.
    #[inline]
    pub(crate) fn ready(&mut self, want: usize) -> usize {
        let mut ready = self.tail.wrapping_sub(self.head);
        if ready < want {
            // Acquire: the items were written before they are read.
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
            ready = self.tail.wrapping_sub(self.head);
        }
        ready.min(want)
    }

    /// Takes up to `want` items; their slots go back to the producer together, when the iterator is dropped.
    #[inline]
    pub(crate) fn take(&mut self, want: usize) -> Take<'_, T> {
        let end = self.head.wrapping_add(self.ready(want));
        Take { consumer: self, end }
    }

    /// The next item.
    pub(crate) fn peek(&mut self) -> Option<&T> {
        if self.ready(1) == 0 {
            return None;
        }
        // SAFETY: inside `head..tail`, so initialised and the consumer's until the head moves on, for which this
        // borrow must end.
        Some(self.shared.slot(self.head).with(|slot| unsafe { (*slot).assume_init_ref() }))
    }

    /// Whether the producer was dropped: what is [`ready`](Self::ready) after that is all that will come.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.0.load(Ordering::Acquire)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.shared.closed.0.store(true, Ordering::Relaxed);
    }
}

/// See [`Consumer::take`].
pub(crate) struct Take<'a, T> {
    consumer: &'a mut Consumer<T>,
    end: usize,
}

impl<T> Iterator for Take<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.consumer.head == self.end {
            return None;
        }
        // SAFETY: inside `head..tail`, so initialised and the consumer's; the next line moves it out of that range.
        let item = self.consumer.shared.slot(self.consumer.head).with(|slot| unsafe { (*slot).assume_init_read() });
        self.consumer.head = self.consumer.head.wrapping_add(1);
        Some(item)
    }
}

impl<T> Drop for Take<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: the slots were read before the producer writes them again.
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
        Take(usize),
        Peek,
    }

    proptest! {
        /// The ring does what a bounded `VecDeque` does.
        #[test]
        #[cfg_attr(miri, ignore = "takes hours; the other tests show miri every access")]
        fn behaves_as_a_queue(
            slots in 1..40usize,
            steps in prop::collection::vec(
                prop_oneof![(0..50usize).prop_map(Step::Put), (0..50usize).prop_map(Step::Take), Just(Step::Peek)],
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
                    Step::Take(want) => {
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

/// All interleavings of a producer and a consumer: `RUSTFLAGS="--cfg loom" cargo test -p ringpass-ports --lib ring`.
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
