//! Time by the time stamp counter, which runs at one frequency whatever the core's clock does.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::worker::cycles;

/// The counter, read after all that comes before in the program and before all that comes after.
#[allow(unsafe_code)]
#[inline]
pub fn fenced() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 processor has both instructions, and they access no memory.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Cycles between two reads with nothing between them: to be subtracted from what a pair of reads measures.
pub fn pair_cost() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let mut pairs: Vec<u64> = (0..10_001).map(|_| fenced().abs_diff(fenced())).collect();
        *pairs.select_nth_unstable(5_000).1
    })
}

/// Counts in a second.
pub fn frequency() -> f64 {
    static HERTZ: OnceLock<f64> = OnceLock::new();
    *HERTZ.get_or_init(|| {
        let (start, from) = (Instant::now(), cycles());
        std::thread::sleep(Duration::from_millis(50));
        (cycles() - from) as f64 / start.elapsed().as_secs_f64()
    })
}
