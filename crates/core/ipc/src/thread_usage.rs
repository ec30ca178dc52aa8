//! Counters that the kernel keeps of a thread: CPU time and waits.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// CPU time of a thread, and how often it has waited (getrusage(2), `RUSAGE_THREAD`).
#[derive(Clone, Copy, Debug)]
pub struct ThreadUsage {
    /// CPU time, in user space and in the kernel.
    pub time: Duration,
    /// Times that it waited for something else than a CPU: in a system call, or for memory.
    pub waits: i64,
}

impl ThreadUsage {
    /// Returns the counters of the calling thread. One system call.
    pub fn now() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("it cannot fail for this thread");
        let time = |time: TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
        Self { time: time(usage.user_time()) + time(usage.system_time()), waits: usage.voluntary_context_switches() }
    }
}
