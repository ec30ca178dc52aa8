//! Huge pages of 2 MiB for the time of a bench.

use std::fs;

use ringpass_memory::{PageSize, huge_pages_free};
use ringpass_port::Error;

const FILE: &str = "/proc/sys/vm/nr_hugepages";

/// Pages that the system has more as long as this lives.
#[derive(Default)]
pub struct HugePages {
    added: usize,
}

impl HugePages {
    /// Sees to it that so many pages are free; takes from ordinary memory what is missing.
    pub fn reserve(wanted: usize) -> Result<Self, Error> {
        let (free, _) = huge_pages_free(PageSize::Huge2M);
        let missing = wanted.saturating_sub(free);
        if missing == 0 {
            return Ok(Self::default());
        }
        let refused = |why: String| {
            let (hint, total) = ("sudo sysctl vm.nr_hugepages", free + missing);
            Error::Other(format!("{wanted} huge pages of 2 MiB are needed, {free} are free, and {why}: {hint}={total}"))
        };
        let before = total().unwrap_or(0);
        fs::write(FILE, (before + missing).to_string())
            .map_err(|error| refused(format!("more are refused ({error})")))?;
        // Given back if they are too few.
        let pages = Self { added: total().unwrap_or(before).saturating_sub(before) };
        match huge_pages_free(PageSize::Huge2M).0 {
            free if free >= wanted => Ok(pages),
            free => Err(refused(format!("the system found memory for {free}"))),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if self.added == 0 {
            return;
        }
        let left = total().map_or(0, |total| total.saturating_sub(self.added));
        if let Err(error) = fs::write(FILE, left.to_string()) {
            eprintln!("{} huge pages could not be given back ({error}): sysctl vm.nr_hugepages={left}", self.added);
        }
    }
}

fn total() -> Option<usize> {
    fs::read_to_string(FILE).ok()?.trim().parse().ok()
}
