//! Drops values whose drop may take long on threads of their own.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most threads that drop something at the same time.
const MAX_THREADS: usize = 64;

/// Threads that drop something, or have just ended.
static THREADS: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Memory of this many bytes is freed on another thread: the kernel takes about 0.3 s for a gigabyte.
pub const LARGE_MEMORY: usize = 16 << 20;

/// Drops a value on another thread, for serving threads that must not wait for it. Where no more threads can be
/// started, it is dropped at the end of this function.
pub fn drop_elsewhere(value: impl Send + 'static) {
    if running().len() >= MAX_THREADS {
        return;
    }
    // Without the lock: if no thread starts, the value is dropped here, and may have something to drop elsewhere.
    let started = std::thread::Builder::new().name("drop".into()).stack_size(64 << 10).spawn(move || drop(value));
    running().extend(started);
}

/// Waits until all values have been dropped, for at most `limit`.
pub fn wait_for_drops(limit: Duration) {
    let start = Instant::now();
    while !running().is_empty() && start.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the threads without those that have ended.
fn running() -> MutexGuard<'static, Vec<JoinHandle<()>>> {
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    // What has panicked has printed why. Joined, so that nothing of a thread is left.
    threads.extract_if(.., |thread| thread.is_finished()).for_each(|thread| drop(thread.join()));
    threads
}

/// Closes a file in memory, on another thread if it is [large](LARGE_MEMORY): this may be the last descriptor of it.
pub(crate) fn close_memory(file: OwnedFd) {
    const BLOCK: u64 = 512;
    let bytes = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_blocks as u64 * BLOCK);
    if bytes >= LARGE_MEMORY as u64 {
        drop_elsewhere(file);
    }
}
