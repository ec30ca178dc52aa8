//! The shared half of a mempool: lock-free stacks of free buffers, which threads exchange in magazines.
//!
//! After Bonwick and Adams, *Magazines and Vmem* (USENIX ATC 2001). The depot moves slot numbers only; it never
//! accesses a buffer.

use std::ptr::NonNull;

use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// Largest number of slots that one exchange with the depot moves.
pub const MAGAZINE: usize = if cfg!(loom) { 8 } else { 128 };

/// A lock-free stack of indices (Treiber, 1986). The upper half of the head is a tag that changes with every
/// exchange, against the ABA problem: 2^32 exchanges would have to fall between one thread's load and its
/// compare-and-swap.
struct IndexStack {
    head: AtomicU64,
    /// For each index on the stack, the index below it.
    below: Box<[AtomicU32]>,
}

/// Marks the bottom of a stack; greater than every index.
const EMPTY: u32 = u32::MAX;

impl IndexStack {
    /// Creates an empty stack for the indices `0..size`.
    fn new(size: usize) -> Self {
        let below = (0..size).map(|_| AtomicU32::new(EMPTY)).collect();
        Self { head: AtomicU64::new(EMPTY as u64), below }
    }

    /// Returns a head with `index` on top and the next tag.
    fn successor(head: u64, index: u32) -> u64 {
        (head >> 32).wrapping_add(1) << 32 | index as u64
    }

    fn push(&self, index: u32) {
        // Release: the thread that pops this index sees what its previous owner wrote.
        let _ = self.head.fetch_update(Ordering::Release, Ordering::Relaxed, |head| {
            self.below[index as usize].store(head as u32, Ordering::Relaxed);
            Some(Self::successor(head, index))
        });
    }

    fn pop(&self) -> Option<u32> {
        let popped = self.head.fetch_update(Ordering::Acquire, Ordering::Acquire, |head| {
            // May be stale if another thread popped the index meanwhile. Then the tag has changed and the
            // exchange fails.
            let below = self.below.get(head as u32 as usize)?.load(Ordering::Relaxed);
            Some(Self::successor(head, below))
        });
        popped.ok().map(|head| head as u32)
    }
}

/// One buffer's address, size and pool, a `P`.
///
/// Never written after the pool is made, except in pools of lent buffers, where the lender writes a slot before
/// it lends the buffer.
pub(crate) struct Slot<P> {
    /// Address behind the headroom, where a device writes a frame.
    pub(crate) data: *mut u8,
    pub(crate) iova: u64,
    pub(crate) pool: NonNull<P>,
    pub(crate) index: u32,
    /// Bytes from `data` on.
    pub(crate) size: u16,
    /// Bytes in front of `data`.
    pub(crate) headroom: u16,
}

/// A pointer to a slot. Arrays are filled with dangling ones, which are never dereferenced.
pub(crate) type SlotRef<P> = NonNull<Slot<P>>;

pub(crate) type SlotCell<P> = std::cell::UnsafeCell<Slot<P>>;

/// Returns a pointer to the slot in a cell.
pub(crate) fn slot_ref<P>(cell: &SlotCell<P>) -> SlotRef<P> {
    NonNull::new(cell.get()).expect("a reference is not null")
}

/// A magazine. The thread that popped its index owns it until it pushes the index again.
struct Magazine<P>(UnsafeCell<(usize, [SlotRef<P>; MAGAZINE])>);

/// The slots of one pool, and which of them are free.
pub(crate) struct Depot<P> {
    pub(crate) slots: Box<[SlotCell<P>]>,
    full: IndexStack,
    empty: IndexStack,
    /// Slots outside of magazines: put back in small numbers, or when no empty magazine was left.
    singles: IndexStack,
    magazines: Box<[Magazine<P>]>,
}

// SAFETY: a slot is written only by the lender of its buffer, while nobody else has it (see `Slot`). A
// magazine's content is accessed only between popping its index from one stack and pushing it onto another. An
// index is on at most one stack, so one thread at a time has it. Release on push and Acquire on pop order the
// accesses of successive owners.
unsafe impl<P> Sync for Depot<P> {}

impl<P> Depot<P> {
    /// Creates a depot for these slots, all of them still outside. Slot `i` must have the index `i`.
    pub(crate) fn new(slots: Box<[SlotCell<P>]>) -> Self {
        let count = slots.len().div_ceil(MAGAZINE) * 2;
        let magazine = |_| Magazine(UnsafeCell::new((0, [NonNull::dangling(); MAGAZINE])));
        let magazines = (0..count).map(magazine).collect();
        let full = IndexStack::new(count);
        let empty = IndexStack::new(count);
        let singles = IndexStack::new(slots.len());
        (0..count).for_each(|m| empty.push(m as u32));
        Self { slots, full, empty, singles, magazines }
    }

    /// Puts all slots into the depot. Called once.
    pub(crate) fn fill(&self) {
        let all: Vec<_> = self.slots.iter().map(slot_ref).collect();
        all.chunks(MAGAZINE).for_each(|some| self.put(some));
    }

    /// Puts up to [`MAGAZINE`] slots back. Never fails.
    pub(crate) fn put(&self, slots: &[SlotRef<P>]) {
        // Magazines are for many slots; a few are pushed one by one, so that magazines do not run out.
        if slots.len() > MAGAZINE / 8
            && let Some(m) = self.empty.pop()
        {
            self.magazines[m as usize].0.with_mut(|magazine| {
                // SAFETY: `m` was popped from `empty` and is on no stack now, so only this thread accesses the
                // magazine.
                let (len, content) = unsafe { &mut *magazine };
                content[..slots.len()].copy_from_slice(slots);
                *len = slots.len();
            });
            self.full.push(m);
        } else {
            // SAFETY: a pool's slots live in its depot's `slots`, which `self` keeps alive.
            slots.iter().for_each(|slot| self.singles.push(unsafe { slot.as_ref() }.index));
        }
    }

    /// Takes up to [`MAGAZINE`] slots into `out` and returns their number; 0 if the depot is empty.
    pub(crate) fn take(&self, out: &mut [SlotRef<P>; MAGAZINE]) -> usize {
        if let Some(m) = self.full.pop() {
            let len = self.magazines[m as usize].0.with(|magazine| {
                // SAFETY: `m` was popped from `full` and is on no stack now, so only this thread accesses the
                // magazine.
                let (len, content) = unsafe { &*magazine };
                out[..*len].copy_from_slice(&content[..*len]);
                *len
            });
            self.empty.push(m);
            return len;
        }
        let singles = std::iter::from_fn(|| self.singles.pop());
        let places = out.iter_mut().zip(singles);
        places.map(|(place, index)| *place = slot_ref(&self.slots[index as usize])).count()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn depot(slots: u32) -> Depot<()> {
        let pool = NonNull::dangling();
        let slot = |index| Slot { data: std::ptr::null_mut(), iova: 0, pool, index, size: 0, headroom: 0 }.into();
        Depot::new((0..slots).map(slot).collect())
    }

    fn put(depot: &Depot<()>, slots: &[u32]) {
        let slots: Vec<SlotRef<()>> = slots.iter().map(|&index| slot_ref(&depot.slots[index as usize])).collect();
        depot.put(&slots);
    }

    /// Runs `job` on `threads` threads in every interleaving of up to two preemptions, then empties the depot.
    /// The slots that the jobs return and those left in the depot must be `0..slots`, each once.
    fn every_slot_once(threads: usize, slots: u32, job: fn(&Depot<()>) -> Vec<u32>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let depot = Arc::new(depot(slots));
            // In chunks of two, each in a magazine until those run out; a last single slot goes to `singles`.
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

    fn take(depot: &Depot<()>) -> Vec<u32> {
        let mut out = [NonNull::dangling(); MAGAZINE];
        let taken = depot.take(&mut out);
        // SAFETY: the slots were taken from `depot`, whose `slots` outlive this function.
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

    /// One thread stops between reading the head's link and its exchange, while the other pops two indices and
    /// pushes the first one again. Without the tag, the stack would be corrupted here.
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
