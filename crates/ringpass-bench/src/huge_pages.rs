//! Huge pages of 2 MiB for the duration of a benchmark.

use std::fs;

use ringpass::Error;
use ringpass_cli::errln;

const FILE: &str = "/proc/sys/vm/nr_hugepages";

/// Huge pages that are reserved in addition as long as this exists.
#[derive(Default)]
pub struct HugePages {
    added: usize,
}

impl HugePages {
    /// Reserves `wanted` pages from ordinary memory, even if others are free, because those may be taken by
    /// other programs.
    pub fn reserve(wanted: usize) -> Result<Self, Error> {
        let before = total().unwrap_or(0);
        let all = (before + wanted).to_string();
        fs::write(FILE, &all).map_err(|error| {
            Error::Permission(format!("{wanted} huge pages of 2 MiB are needed, and refused ({error}): run it as root"))
        })?;
        // Dropping this value on an error releases the pages.
        let pages = Self { added: total().unwrap_or(before).saturating_sub(before) };
        if pages.added < wanted {
            let found = pages.added;
            return Err(Error::Fault(format!(
                "{wanted} huge pages of 2 MiB are needed, and the system found memory for {found}: free some"
            )));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if self.added == 0 {
            return;
        }
        let left = total().map_or(0, |total| total.saturating_sub(self.added));
        if let Err(error) = fs::write(FILE, left.to_string()) {
            errln!("{} huge pages could not be given back ({error}): sysctl vm.nr_hugepages={left}", self.added);
        }
    }
}

fn total() -> Option<usize> {
    fs::read_to_string(FILE).ok()?.trim().parse().ok()
}
