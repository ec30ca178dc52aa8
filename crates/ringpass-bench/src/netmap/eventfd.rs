//! Cost of a wake-up on this machine: two threads that wake each other by eventfds.

use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass::Error;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

/// Returns the shortest and the average round trip between two cores in µs.
pub fn round_trips(cores: [CoreId; 2], time: Duration) -> Result<[f64; 2], Error> {
    let os = |errno: rustix::io::Errno| Error::os("an eventfd", errno);
    let [there, back] = [eventfd(0, EventfdFlags::CLOEXEC), eventfd(0, EventfdFlags::CLOEXEC)];
    let (there, back) = (there.map_err(os)?, back.map_err(os)?);
    let one = 1_u64.to_ne_bytes();
    // A value other than 1 ends the other thread.
    let last = 2_u64.to_ne_bytes();
    let times = std::thread::scope(|scope| {
        scope.spawn(|| {
            core_affinity::set_for_current(cores[1]);
            let mut value = [0; 8];
            while read(&there, &mut value).is_ok() && value == one {
                let _ = write(&back, &one);
            }
        });
        let timing = scope.spawn(|| {
            core_affinity::set_for_current(cores[0]);
            let start = Instant::now();
            let mut least = Duration::MAX;
            let mut count = 0_u32;
            while start.elapsed() < time {
                let sent = Instant::now();
                write(&there, &one)?;
                read(&back, &mut [0; 8])?;
                least = least.min(sent.elapsed());
                count += 1;
            }
            let average = start.elapsed() / count.max(1);
            Ok::<_, rustix::io::Errno>([least, average])
        });
        let times = timing.join().expect("no panic");
        let _ = write(&there, &last);
        times
    });
    times.map(|times| times.map(|time| time.as_secs_f64() * 1e6)).map_err(os)
}
