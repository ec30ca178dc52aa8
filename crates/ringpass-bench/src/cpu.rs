//! CPU time of processes.

use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;
use ringpass::Error;

use super::tsc;

/// Returns the CPU time that a process has used so far, including its threads that have ended.
///
/// Read from the process's CPU-time clock (clock_getcpuclockid(3)), which the kernel updates on each read. The
/// files in `/proc` lag behind a running thread until its next timer tick: by milliseconds, or by a second on
/// CPUs without ticks (`nohz_full`), where a thread that has copied millions of packets appears to have used
/// nothing.
pub fn used(process: u32) -> Result<Duration, Error> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(process as i32));
    let time = clock.and_then(ClockId::now).map(Duration::from);
    time.map_err(|errno| Error::os(format!("the processor time of process {process}"), errno))
}

/// Returns whether a thread that reads each packet can have used as little as `used` for `packets`. Less than
/// one cycle of the time stamp counter per packet is impossible even for the fastest code.
pub fn is_possible(used: Duration, packets: u64) -> bool {
    used.as_secs_f64() * tsc::frequency() >= packets as f64
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn own() -> Duration {
        used(std::process::id()).unwrap()
    }

    fn thread() -> Duration {
        ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap().into()
    }

    /// Spins until this thread has used `time` of CPU time; other threads may run in between.
    fn work(time: Duration) {
        let (start, end) = (Instant::now(), thread() + time);
        while thread() < end {
            assert!(start.elapsed() < Duration::from_secs(60), "this thread gets no processor");
            std::hint::spin_loop();
        }
    }

    /// The interval is shorter than a timer tick, and nothing in it makes the kernel update the thread's CPU
    /// time.
    #[test]
    fn a_running_thread_is_counted_to_the_moment() {
        for turn in 0..100 {
            let (before, start) = (own(), Instant::now());
            while start.elapsed() < Duration::from_micros(200) {
                std::hint::spin_loop();
            }
            assert!(own() > before, "turn {turn}: 200 µs of work count for nothing");
        }
    }

    #[test]
    fn threads_that_have_ended_are_counted() {
        let before = own();
        std::thread::spawn(|| work(Duration::from_millis(50))).join().unwrap();
        let used = own() - before;
        assert!(used >= Duration::from_millis(50), "{used:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        // Above the largest value of pid_max (proc(5)).
        let error = used(1 << 23).unwrap_err().to_string();
        assert!(error.starts_with("the processor time of process 8388608: "), "{error}");
    }

    #[test]
    fn less_than_a_cycle_a_packet_is_impossible() {
        // Every x86-64 processor's counter runs at 0.5 to 10 GHz.
        assert!(!is_possible(Duration::from_micros(90), 1_000_000));
        assert!(is_possible(Duration::from_millis(2), 1_000_000));
        assert!(is_possible(Duration::ZERO, 0));
    }
}
