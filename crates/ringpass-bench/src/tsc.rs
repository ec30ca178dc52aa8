//! Time measured with the time stamp counter, which has a constant frequency whatever the core's clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ringpass::cycles;

/// Returns the time stamp counter, read after all earlier and before all later instructions.
#[allow(unsafe_code)]
#[inline]
pub fn fenced() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 processor has LFENCE and RDTSC, and neither accesses memory.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Returns the cycles between two reads with nothing in between, which are subtracted from measured intervals.
pub fn pair_cost() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let mut pairs: Vec<u64> = (0..10_001).map(|_| fenced().abs_diff(fenced())).collect();
        *pairs.select_nth_unstable(5_000).1
    })
}

/// Returns the counter's frequency in Hz.
pub fn frequency() -> f64 {
    static HERTZ: OnceLock<f64> = OnceLock::new();
    *HERTZ.get_or_init(|| {
        let (start, from) = (Instant::now(), cycles());
        std::thread::sleep(Duration::from_millis(50));
        (cycles() - from) as f64 / start.elapsed().as_secs_f64()
    })
}
