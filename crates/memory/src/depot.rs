//! The shared half of a mempool: stacks of free buffers that threads exchange by the magazine, without locks.
//!
//! After Bonwick and Adams, *Magazines and Vmem* (USENIX ATC 2001). The depot moves slot numbers only; it never
//! touches a buffer.

use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// Slots that one exchange with the depot moves at most.
pub const MAGAZINE: usize = if cfg!(loom) { 2 } else { 64 };

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
struct Magazine(UnsafeCell<(usize, [u32; MAGAZINE])>);

/// Free slots of one pool.
pub(crate) struct Depot {
    full: IndexStack,
    empty: IndexStack,
    /// Slots that found no empty magazine, or came alone.
    loose: IndexStack,
    magazines: Box<[Magazine]>,
    magazine_links: Box<[AtomicU32]>,
    slot_links: Box<[AtomicU32]>,
}

// SAFETY: a magazine's content is reached only between popping its index from one stack and pushing it onto another;
// an index is on at most one stack, so one thread at a time has it. Release on push and Acquire on pop order the
// accesses of successive owners.
unsafe impl Sync for Depot {}
// SAFETY: the depot owns all it holds.
unsafe impl Send for Depot {}

impl Depot {
    /// A depot with no slot in it, for slots `0..slots`.
    pub(crate) fn new(slots: usize) -> Self {
        assert!(slots < EMPTY as usize);
        let links = |n: usize| (0..n).map(|_| AtomicU32::new(EMPTY)).collect::<Box<[_]>>();
        let count = slots.div_ceil(MAGAZINE) * 2;
        let depot = Self {
            full: IndexStack::new(),
            empty: IndexStack::new(),
            loose: IndexStack::new(),
            magazines: (0..count).map(|_| Magazine(UnsafeCell::new((0, [0; MAGAZINE])))).collect(),
            magazine_links: links(count),
            slot_links: links(slots),
        };
        (0..count).for_each(|m| depot.empty.push(&depot.magazine_links, m as u32));
        depot
    }

    /// Gives back up to [`MAGAZINE`] slots. Never fails.
    pub(crate) fn put(&self, slots: &[u32]) {
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
            slots.iter().for_each(|&slot| self.loose.push(&self.slot_links, slot));
        }
    }

    /// Takes up to [`MAGAZINE`] slots into `out` and says how many; 0 when the depot is empty.
    pub(crate) fn take(&self, out: &mut [u32; MAGAZINE]) -> usize {
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
            out[taken] = slot;
            taken += 1;
        }
        taken
    }
}
