//! The line that describes where and how results were measured.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::tsc;

/// Returns processor, kernel, date and command.
pub fn line() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let cpu = name.map_or("unknown processor", |(_, name)| name.trim());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let program = ["ringpass".to_owned(), "bench".into()].into_iter();
    let command: Vec<String> = program.chain(std::env::args().skip(1)).collect();
    format!(
        "{cpu}, time stamp counter at {:.2} GHz, Linux {}, {}: {}",
        tsc::frequency() / 1e9,
        kernel.trim(),
        date(seconds / 86_400),
        command.join(" ")
    )
}

/// Returns how often this thread was preempted.
pub fn preemptions() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Converts days since 1970 to year-month-day (UTC).
fn date(mut days: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days_become_dates() {
        let dates = [0, 58, 59, 19_782, 19_783, 20_818].map(date);
        assert_eq!(dates, ["1970-01-01", "1970-02-28", "1970-03-01", "2024-02-29", "2024-03-01", "2026-12-31"]);
    }
}
