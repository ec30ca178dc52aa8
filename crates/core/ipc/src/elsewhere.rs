//! Drops values whose drop may take long on threads of their own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most threads that drop something at the same time.
const MAX_THREADS: usize = 64;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Memory of this many bytes is freed on another thread: the kernel takes about 0.3 s for a gigabyte.
pub const LARGE_MEMORY: usize = 16 << 20;

/// Drops a value on another thread, for serving threads that must not wait for it. Where no more threads can be
/// started, it is dropped here.
pub fn drop_elsewhere(value: impl Send + 'static) {
    if THREADS.fetch_add(1, Ordering::Relaxed) >= MAX_THREADS {
        THREADS.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let work = move || {
        drop(value);
        // Whoever sees this also sees what the drop has written.
        THREADS.fetch_sub(1, Ordering::Release);
    };
    if std::thread::Builder::new().name("drop".into()).stack_size(64 << 10).spawn(work).is_err() {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until all values have been dropped, for at most `limit`.
pub fn wait_for_drops(limit: Duration) {
    let start = Instant::now();
    while THREADS.load(Ordering::Acquire) > 0 && start.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Closes a file in memory, on another thread if it is [large](LARGE_MEMORY): this may be the last descriptor of it.
pub(crate) fn close_memory(file: OwnedFd) {
    const BLOCK: u64 = 512;
    let bytes = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_blocks as u64 * BLOCK);
    if bytes >= LARGE_MEMORY as u64 {
        drop_elsewhere(file);
    }
}
