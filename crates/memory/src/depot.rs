//! The shared half of a mempool: stacks of free buffers that threads exchange by the magazine, without locks.
//!
//! After Bonwick and Adams, *Magazines and Vmem* (USENIX ATC 2001). The depot moves slot numbers only; it never
//! touches a buffer.

use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// Slots that one exchange with the depot moves at most.
pub const MAGAZINE: usize = if cfg!(loom) { 8 } else { 128 };

/// A stack of indices (Treiber, 1986). The head carries a tag in its upper half, changed on every exchange, against
/// the ABA problem: 2^32 exchanges would have to fall between one thread's load and its compare-and-swap.
struct IndexStack(AtomicU64);

const EMPTY: u32 = u32::MAX;

impl IndexStack {
    fn new() -> Self {
        Self(AtomicU64::new(EMPTY as u64))
    }

    fn successor(head: u64, index: u32) -> u64 {
        (head >> 32).wrapping_add(1) << 32 | index as u64
    }

    fn push(&self, links: &[AtomicU32], index: u32) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            links[index as usize].store(head as u32, Ordering::Relaxed);
            // Release: whoever pops this index sees what its owner wrote before.
            match self.0.compare_exchange_weak(head, Self::successor(head, index), Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn pop(&self, links: &[AtomicU32]) -> Option<u32> {
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let index = head as u32;
            if index == EMPTY {
                return None;
            }
            // May be stale when another thread popped `index` meanwhile; then the tag has moved and the swap fails.
            let next = links[index as usize].load(Ordering::Relaxed);
            match self.0.compare_exchange_weak(head, Self::successor(head, next), Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }
}

/// A magazine at rest. Whoever popped its index owns it until pushing it again.
struct Magazine<T>(UnsafeCell<(usize, [T; MAGAZINE])>);

/// Free slots of one pool.
pub(crate) struct Depot<T> {
    full: IndexStack,
    empty: IndexStack,
    /// Slots that found no empty magazine, or came alone.
    loose: IndexStack,
    magazines: Box<[Magazine<T>]>,
    magazine_links: Box<[AtomicU32]>,
    slot_links: Box<[AtomicU32]>,
}

// SAFETY: a magazine's content is reached only between popping its index from one stack and pushing it onto another;
// an index is on at most one stack, so one thread at a time has it. Release on push and Acquire on pop order the
// accesses of successive owners.
unsafe impl<T: Send> Sync for Depot<T> {}

/// What a depot keeps: something that knows its number.
pub(crate) trait Numbered: Copy {
    fn number(self) -> u32;
}

impl<T: Numbered> Depot<T> {
    /// A depot with no slot in it, for slots with the numbers `0..slots`. `filler` fills the magazines until then.
    pub(crate) fn new(slots: usize, filler: T) -> Self {
        assert!(slots < EMPTY as usize);
        let links = |n: usize| (0..n).map(|_| AtomicU32::new(EMPTY)).collect::<Box<[_]>>();
        let count = slots.div_ceil(MAGAZINE) * 2;
        let depot = Self {
            full: IndexStack::new(),
            empty: IndexStack::new(),
            loose: IndexStack::new(),
            magazines: (0..count).map(|_| Magazine(UnsafeCell::new((0, [filler; MAGAZINE])))).collect(),
            magazine_links: links(count),
            slot_links: links(slots),
        };
        (0..count).for_each(|m| depot.empty.push(&depot.magazine_links, m as u32));
        depot
    }

    /// Gives back up to [`MAGAZINE`] slots. Never fails.
    pub(crate) fn put(&self, slots: &[T]) {
        // A magazine for a few slots would waste the magazines; those go one by one.
        if slots.len() > MAGAZINE / 8
            && let Some(m) = self.empty.pop(&self.magazine_links)
        {
            self.magazines[m as usize].0.with_mut(|magazine| {
                // SAFETY: `m` was popped just now, so this thread alone has the magazine (see `Sync`).
                let (len, content) = unsafe { &mut *magazine };
                content[..slots.len()].copy_from_slice(slots);
                *len = slots.len();
            });
            self.full.push(&self.magazine_links, m);
        } else {
            slots.iter().for_each(|&slot| self.loose.push(&self.slot_links, slot.number()));
        }
    }

    /// Takes up to [`MAGAZINE`] slots into `out` and says how many; 0 when the depot is empty. `numbered` finds a slot
    /// by its number.
    pub(crate) fn take(&self, out: &mut [T; MAGAZINE], numbered: impl Fn(u32) -> T) -> usize {
        if let Some(m) = self.full.pop(&self.magazine_links) {
            let len = self.magazines[m as usize].0.with(|magazine| {
                // SAFETY: as in `put`.
                let (len, content) = unsafe { &*magazine };
                out[..*len].copy_from_slice(&content[..*len]);
                *len
            });
            self.empty.push(&self.magazine_links, m);
            return len;
        }
        let mut taken = 0;
        while taken < MAGAZINE
            && let Some(slot) = self.loose.pop(&self.slot_links)
        {
            out[taken] = numbered(slot);
            taken += 1;
        }
        taken
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    impl Numbered for u32 {
        fn number(self) -> u32 {
            self
        }
    }

    /// Runs `job` on `threads` threads in every order that matters (of up to two preemptions), then takes what is left
    /// in the depot: with what the jobs return, that must be each of `0..slots` once.
    fn every_slot_once(threads: usize, slots: u32, job: fn(&Depot<u32>) -> Vec<u32>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let depot = Depot::new(slots as usize, 0);
            // Two at a time into magazines, until those run out; a last one loose.
            (0..slots).collect::<Vec<_>>().chunks(2).for_each(|some| depot.put(some));
            let depot = Arc::new(depot);
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

    fn take(depot: &Depot<u32>) -> Vec<u32> {
        let mut out = [0; MAGAZINE];
        let taken = depot.take(&mut out, |slot| slot);
        out[..taken].to_vec()
    }

    #[test]
    fn loom_take() {
        every_slot_once(3, 5, take);
    }

    #[test]
    fn loom_take_and_put_back() {
        every_slot_once(3, 4, |depot| {
            depot.put(&take(depot));
            vec![]
        });
    }

    #[test]
    fn loom_put_back_one_by_one() {
        every_slot_once(2, 4, |depot| {
            let slots = take(depot);
            slots.iter().for_each(|&slot| depot.put(&[slot]));
            take(depot)
        });
    }

    /// One thread stands between reading the head's link and its exchange, while the other takes two and puts the
    /// first back: without the tag the stack would lose its way here.
    #[test]
    fn loom_aba() {
        loom::model(|| {
            let links: Arc<[AtomicU32; 3]> = Arc::new(std::array::from_fn(|_| AtomicU32::new(EMPTY)));
            let stack = Arc::new(IndexStack::new());
            (0..3).for_each(|index| stack.push(&*links, index));
            let other = thread::spawn({
                let (stack, links) = (stack.clone(), links.clone());
                move || {
                    let (first, second) = (stack.pop(&*links), stack.pop(&*links));
                    first.iter().for_each(|&index| stack.push(&*links, index));
                    second
                }
            });
            let mut seen: Vec<u32> = stack.pop(&*links).into_iter().collect();
            seen.extend(other.join().unwrap());
            seen.extend(std::iter::from_fn(|| stack.pop(&*links)));
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2]);
        });
    }
}
