//! The shared half of a mempool: stacks of free buffers that threads exchange by the magazine, without locks.
//!
//! After Bonwick and Adams, *Magazines and Vmem* (USENIX ATC 2001). The depot moves slot numbers only; it never
//! touches a buffer.

use std::ptr::NonNull;

use crate::pool::SlotRef;
use crate::slots::{SlotCell, slot_ref};
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// Slots that one exchange with the depot moves at most.
pub const MAGAZINE: usize = if cfg!(loom) { 8 } else { 128 };

/// A stack of indices (Treiber, 1986). The head carries a tag in its upper half, changed on every exchange, against
/// the ABA problem: 2^32 exchanges would have to fall between one thread's load and its compare-and-swap.
struct IndexStack {
    head: AtomicU64,
    /// Of each index on the stack, the one below it.
    below: Box<[AtomicU32]>,
}

/// Above every index.
const EMPTY: u32 = u32::MAX;

impl IndexStack {
    /// An empty stack for the indices `0..size`.
    fn new(size: usize) -> Self {
        let below = (0..size).map(|_| AtomicU32::new(EMPTY)).collect();
        Self { head: AtomicU64::new(EMPTY as u64), below }
    }

    /// A head with the next tag.
    fn successor(head: u64, index: u32) -> u64 {
        (head >> 32).wrapping_add(1) << 32 | index as u64
    }

    fn push(&self, index: u32) {
        // Release: whoever pops this index sees what its owner wrote before.
        let _ = self.head.fetch_update(Ordering::Release, Ordering::Relaxed, |head| {
            self.below[index as usize].store(head as u32, Ordering::Relaxed);
            Some(Self::successor(head, index))
        });
    }

    fn pop(&self) -> Option<u32> {
        let popped = self.head.fetch_update(Ordering::Acquire, Ordering::Acquire, |head| {
            // May be stale when another thread popped it meanwhile; then the tag has moved and the exchange fails.
            let below = self.below.get(head as u32 as usize)?.load(Ordering::Relaxed);
            Some(Self::successor(head, below))
        });
        popped.ok().map(|head| head as u32)
    }
}

/// A magazine at rest. Whoever popped its index owns it until pushing it again.
struct Magazine(UnsafeCell<(usize, [SlotRef; MAGAZINE])>);

/// The slots of one pool, and which of them are free.
pub(crate) struct Depot {
    pub(crate) slots: Box<[SlotCell]>,
    full: IndexStack,
    empty: IndexStack,
    /// Slots that found no empty magazine, or came alone.
    loose: IndexStack,
    magazines: Box<[Magazine]>,
}

// SAFETY: a slot is written by whoever has it to lend, alone (see `Slot`). A magazine's content is reached only between
// popping its index from one stack and pushing it onto another; an index is on at most one stack, so one thread at a time
// has it. Release on push and Acquire on pop order the accesses of successive owners.
unsafe impl Sync for Depot {}

impl Depot {
    /// A depot of these slots (slot `i` has the index `i`), none of which is in it yet.
    pub(crate) fn new(slots: Box<[SlotCell]>) -> Self {
        let count = slots.len().div_ceil(MAGAZINE) * 2;
        let magazine = |_| Magazine(UnsafeCell::new((0, [NonNull::dangling(); MAGAZINE])));
        let magazines = (0..count).map(magazine).collect();
        let (full, empty, loose) = (IndexStack::new(count), IndexStack::new(count), IndexStack::new(slots.len()));
        (0..count).for_each(|m| empty.push(m as u32));
        Self { slots, full, empty, loose, magazines }
    }

    /// Puts all slots in, once.
    pub(crate) fn fill(&self) {
        let all: Vec<_> = self.slots.iter().map(slot_ref).collect();
        all.chunks(MAGAZINE).for_each(|some| self.put(some));
    }

    /// Gives back up to [`MAGAZINE`] slots. Never fails.
    pub(crate) fn put(&self, slots: &[SlotRef]) {
        // A magazine for a few slots would waste the magazines; those go one by one.
        if slots.len() > MAGAZINE / 8
            && let Some(m) = self.empty.pop()
        {
            self.magazines[m as usize].0.with_mut(|magazine| {
                // SAFETY: `m` was popped just now, so this thread alone has the magazine (see `Sync`).
                let (len, content) = unsafe { &mut *magazine };
                content[..slots.len()].copy_from_slice(slots);
                *len = slots.len();
            });
            self.full.push(m);
        } else {
            // SAFETY: slots put into a depot are its own.
            slots.iter().for_each(|slot| self.loose.push(unsafe { slot.as_ref() }.index));
        }
    }

    /// Takes up to [`MAGAZINE`] slots into `out` and says how many; 0 when the depot is empty.
    pub(crate) fn take(&self, out: &mut [SlotRef; MAGAZINE]) -> usize {
        if let Some(m) = self.full.pop() {
            let len = self.magazines[m as usize].0.with(|magazine| {
                // SAFETY: as in `put`.
                let (len, content) = unsafe { &*magazine };
                out[..*len].copy_from_slice(&content[..*len]);
                *len
            });
            self.empty.push(m);
            return len;
        }
        let loose = std::iter::from_fn(|| self.loose.pop());
        let places = out.iter_mut().zip(loose);
        places.map(|(place, index)| *place = slot_ref(&self.slots[index as usize])).count()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::pool::Slot;

    fn depot(slots: u32) -> Depot {
        let pool = NonNull::dangling();
        let slot = |index| Slot { data: std::ptr::null_mut(), iova: 0, pool, index, size: 0, headroom: 0 }.into();
        Depot::new((0..slots).map(slot).collect())
    }

    fn put(depot: &Depot, slots: &[u32]) {
        let slots: Vec<SlotRef> = slots.iter().map(|&index| slot_ref(&depot.slots[index as usize])).collect();
        depot.put(&slots);
    }

    /// Runs `job` on `threads` threads in every order that matters (of up to two preemptions), then takes what is left
    /// in the depot: with what the jobs return, that must be each of `0..slots` once.
    fn every_slot_once(threads: usize, slots: u32, job: fn(&Depot) -> Vec<u32>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let depot = Arc::new(depot(slots));
            // Two at a time into magazines, until those run out; a last one loose.
            (0..slots).collect::<Vec<_>>().chunks(2).for_each(|some| put(&depot, some));
            let spawn = |_| {
                let depot = depot.clone();
                thread::spawn(move || job(&depot))
            };
            let threads: Vec<_> = (1..threads).map(spawn).collect();
            let mut seen = job(&depot);
            threads.into_iter().for_each(|thread| seen.extend(thread.join().unwrap()));
            loop {
                let left = take(&depot);
                if left.is_empty() {
                    break;
                }
                seen.extend(left);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..slots).collect::<Vec<_>>());
        });
    }

    fn take(depot: &Depot) -> Vec<u32> {
        let mut out = [NonNull::dangling(); MAGAZINE];
        let taken = depot.take(&mut out);
        // SAFETY: those were taken from the depot, so they are its own.
        out[..taken].iter().map(|slot| unsafe { slot.as_ref() }.index).collect()
    }

    #[test]
    fn loom_take() {
        every_slot_once(3, 5, take);
    }

    #[test]
    fn loom_take_and_put_back() {
        every_slot_once(3, 4, |depot| {
            put(depot, &take(depot));
            vec![]
        });
    }

    #[test]
    fn loom_put_back_one_by_one() {
        every_slot_once(2, 4, |depot| {
            let slots = take(depot);
            slots.iter().for_each(|&slot| put(depot, &[slot]));
            take(depot)
        });
    }

    /// One thread stands between reading the head's link and its exchange, while the other takes two and puts the
    /// first back: without the tag the stack would lose its way here.
    #[test]
    fn loom_aba() {
        loom::model(|| {
            let stack = Arc::new(IndexStack::new(3));
            (0..3).for_each(|index| stack.push(index));
            let other = thread::spawn({
                let stack = stack.clone();
                move || {
                    let (first, second) = (stack.pop(), stack.pop());
                    first.iter().for_each(|&index| stack.push(index));
                    second
                }
            });
            let mut seen: Vec<u32> = stack.pop().into_iter().collect();
            seen.extend(other.join().unwrap());
            seen.extend(std::iter::from_fn(|| stack.pop()));
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2]);
        });
    }
}
