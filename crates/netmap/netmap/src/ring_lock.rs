//! The lock of a ring, by which the threads and processes that share a ring synchronise it one after the other, as netmap does by
//! `nm_kr_tryget()`.
//!
//! It lies in the memory of the port's CSB and names its owner. A process that is killed while it owns the lock never releases it, so who
//! waits in vain checks whether the owner still runs, and takes the lock if not. Another process can write anything
//! there; at worst a ring is not synchronised, or by two at once, and positions are checked as always.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

/// Words that those who use a ring share, besides its positions: a cache line for each ring.
#[repr(C)]
#[derive(Default)]
pub(crate) struct SharedRing {
    /// Owned by who synchronises the ring.
    pub(crate) sync: RingLock,
    /// Owned by who fills the ring of a monitor.
    pub(crate) fill: RingLock,
    /// Numbers, plus one, of the next entries that a monitor's ring takes from one or two logs; 0 before the first.
    pub(crate) followed: [AtomicU64; 2],
    spare: [AtomicU64; 5],
}

const _: () = assert!(size_of::<SharedRing>() == 64);

/// A lock whose value is twice the process id of its last owner, plus one while that owns it. Initially 0.
#[repr(transparent)]
#[derive(Default)]
pub(crate) struct RingLock(AtomicU32);

/// A lock that this process owns until this is dropped.
pub(crate) struct Owned<'a> {
    lock: &'a RingLock,
    released: u32,
    /// Another process may have owned the lock since this one did.
    pub(crate) handed_over: bool,
}

/// A ring that no other thread or process synchronises until this is dropped.
#[must_use]
pub struct LockedRing<'a>(#[expect(dead_code, reason = "dropped with the ring")] pub(crate) Option<Owned<'a>>);

/// Rounds of waiting for another owner, which takes microseconds unless it is preempted.
const SPIN_LIMIT: u32 = 10_000;

/// Process id by which this process owns locks; 0 until the first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Makes the child of a fork own its locks under its own process id. To be called in the child.
pub fn forked() {
    PROCESS.store(0, Relaxed);
}

impl RingLock {
    /// Takes the lock. `None` if another thread or process has it, even after some waiting. The wait is bounded: this
    /// may be a signal handler that has interrupted the thread which has the lock.
    #[inline]
    pub(crate) fn acquire(&self) -> Option<Owned<'_>> {
        let process = PROCESS.load(Relaxed);
        let released = process << 1;
        if process == 0 || self.0.compare_exchange(released, released | 1, Acquire, Relaxed).is_err() {
            return self.acquire_slowly();
        }
        Some(Owned { lock: self, released, handed_over: false })
    }

    #[cold]
    fn acquire_slowly(&self) -> Option<Owned<'_>> {
        let process = getpid().as_raw_pid() as u32;
        PROCESS.store(process, Relaxed);
        let released = process << 1;
        let take = |seen| {
            let taken = self.0.compare_exchange(seen, released | 1, Acquire, Relaxed).is_ok();
            taken.then(|| Owned { lock: self, released, handed_over: seen != released })
        };
        for round in 0..SPIN_LIMIT {
            let seen = self.0.load(Relaxed);
            if seen & 1 == 0
                && let Some(owned) = take(seen)
            {
                return Some(owned);
            }
            // The owner may be waiting for this CPU.
            if round % 4 == 3 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let seen = self.0.load(Relaxed);
        if seen & 1 == 1 && seen != released | 1 && has_ended(seen >> 1) { take(seen) } else { None }
    }
}

impl Drop for Owned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.0.store(self.released, Release);
    }
}

/// Returns whether a process has ended. One that nobody has waited for has ended, too. Process ids of another namespace than this
/// process's name others, or none.
fn has_ended(process: u32) -> bool {
    let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return true };
    match pidfd_open(process, PidfdFlags::empty()) {
        Ok(process) => {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)) == Ok(1)
        }
        Err(errno) => errno == Errno::SRCH,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_lock_has_one_owner() {
        let lock = RingLock::default();
        let first = lock.acquire().expect("nobody has it");
        assert!(first.handed_over, "nothing is known of the time before");
        assert!(lock.acquire().is_none(), "a second owner");
        drop(first);
        assert!(!lock.acquire().expect("released").handed_over);
    }

    #[test]
    fn what_a_process_leaves_when_it_ends() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let lock = RingLock(AtomicU32::new(child.id() << 1 | 1));
        assert!(lock.acquire().is_none(), "its owner runs");
        child.kill().unwrap();
        // Killed, but not waited for.
        let taken = (0..1000).find_map(|_| lock.acquire());
        assert!(taken.expect("its owner was killed").handed_over);
        child.wait().unwrap();
        lock.0.store(child.id() << 1, Relaxed);
        assert!(lock.acquire().expect("released").handed_over);
        lock.0.store(u32::MAX, Relaxed);
        assert!(lock.acquire().expect("no such process").handed_over);
    }
}
