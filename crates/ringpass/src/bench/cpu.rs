//! Processor time.

use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;
use ringpass_port::Error;

use super::tsc;

/// What a process has used so far: all its threads, those that have ended, too.
///
/// Read from the process's CPU-time clock (clock_getcpuclockid(3)), which the kernel brings up to date for the reader. The
/// files in `/proc` lag behind a running thread until its next timer tick: by milliseconds, or by a second on CPUs without
/// ticks (`nohz_full`), where a thread that has copied millions of packets appears to have used nothing.
pub fn used(process: u32) -> Result<Duration, Error> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(process as i32));
    let time = clock.and_then(ClockId::now).map(Duration::from);
    time.map_err(|errno| Error::Os { what: format!("the processor time of process {process}"), source: errno.into() })
}

/// Whether a thread that looks at each packet can have used this little for so many: a cycle of the time stamp counter each
/// is less than the fastest code needs.
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

    /// Uses so much of a processor; others may have it first.
    fn work(time: Duration) {
        let (start, end) = (Instant::now(), thread() + time);
        while thread() < end {
            assert!(start.elapsed() < Duration::from_secs(60), "this thread gets no processor");
            std::hint::spin_loop();
        }
    }

    /// Shorter than a timer tick, and nothing in between that has the kernel look at the thread.
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
        // More than the kernel ever gives out (proc(5), pid_max).
        let error = used(1 << 23).unwrap_err().to_string();
        assert!(error.starts_with("the processor time of process 8388608: "), "{error}");
    }

    #[test]
    fn less_than_a_cycle_a_packet_is_impossible() {
        // No x86-64 processor has a counter slower than 0.5 GHz, or faster than 10.
        assert!(!is_possible(Duration::from_micros(90), 1_000_000));
        assert!(is_possible(Duration::from_millis(2), 1_000_000));
        assert!(is_possible(Duration::ZERO, 0));
    }
}
