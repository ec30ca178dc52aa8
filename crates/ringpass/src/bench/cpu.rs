//! Processor time.

use std::fs;
use std::time::Duration;

/// What the threads that a process has now have used so far (proc(5), `schedstat`, in nanoseconds).
pub fn used(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_uses_time() {
        let process = std::process::id();
        let before = super::used(process);
        let start = std::time::Instant::now();
        // Others may have the processor first.
        while super::used(process) == before {
            assert!(start.elapsed().as_secs() < 20);
            std::hint::spin_loop();
        }
    }
}
