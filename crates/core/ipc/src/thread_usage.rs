//! Counters that the kernel keeps of a thread: CPU time, waits and page faults.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// CPU time, waits and page faults of a thread (getrusage(2), `RUSAGE_THREAD`).
///
/// In a virtual machine without steal time, the CPU time includes what the host took from the virtual CPU.
#[derive(Clone, Copy, Debug)]
pub struct ThreadUsage {
    /// CPU time, in user space and in the kernel.
    pub time: Duration,
    /// Times that it waited for something else than a CPU: in a system call, or for memory.
    pub waits: i64,
    /// Page faults, with and without input or output.
    pub faults: i64,
}

impl ThreadUsage {
    /// Returns the counters of the calling thread. One system call.
    pub fn now() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("it cannot fail for this thread");
        let time = |time: TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
        Self {
            time: time(usage.user_time()) + time(usage.system_time()),
            waits: usage.voluntary_context_switches(),
            faults: usage.minor_page_faults() + usage.major_page_faults(),
        }
    }
}
