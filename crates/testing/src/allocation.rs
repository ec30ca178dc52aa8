//! An allocator that counts the calls of each thread.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static FREES: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of each thread's calls. A test program declares it as its allocator:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: ringpass_testing::CountingAllocator = ringpass_testing::CountingAllocator;
///
/// assert_eq!(ringpass_testing::allocator_calls(|| drop(Vec::<u8>::new())), 0);
/// assert_eq!(ringpass_testing::allocator_calls(|| drop(vec![1])), 2);
/// ```
pub struct CountingAllocator;

// SAFETY: each call is passed unchanged to `System`, which fulfils the contract of `GlobalAlloc`. The counts are `Cell`s without
// destructors, initialised by constants, so that counting neither allocates nor fails.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller fulfils the contract of `GlobalAlloc::alloc`, which is also that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        FREES.set(FREES.get() + 1);
        // SAFETY: `start` came from `System` by `alloc` above, with this layout, by the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Returns how often this thread has allocated memory during `work`.
///
/// # Panics
///
/// If [`CountingAllocator`] is not the program's allocator.
pub fn allocations(work: impl FnOnce()) -> u64 {
    check();
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// Returns how often this thread has allocated or freed memory during `work`. Frees are counted, too, because what is freed was
/// allocated.
///
/// # Panics
///
/// If [`CountingAllocator`] is not the program's allocator.
pub fn allocator_calls(work: impl FnOnce()) -> u64 {
    check();
    let before = ALLOCATIONS.get() + FREES.get();
    work();
    ALLOCATIONS.get() + FREES.get() - before
}

fn check() {
    let before = ALLOCATIONS.get();
    drop(black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get() - before, 1, "the program's allocator is not the one that counts");
}
