//! Huge pages of 2 MiB for the time of a bench.

use std::fs;

use ringpass_port::Error;

const FILE: &str = "/proc/sys/vm/nr_hugepages";

/// Pages that the system has more as long as this lives.
#[derive(Default)]
pub struct HugePages {
    added: usize,
}

impl HugePages {
    /// Takes so many from ordinary memory, whether others are free or not: those may be somebody else's soon.
    pub fn reserve(wanted: usize) -> Result<Self, Error> {
        let before = total().unwrap_or(0);
        let all = (before + wanted).to_string();
        fs::write(FILE, &all).map_err(|error| {
            Error::Other(format!("{wanted} huge pages of 2 MiB are needed, and refused ({error}): run it as root"))
        })?;
        // Given back if they are too few.
        let pages = Self { added: total().unwrap_or(before).saturating_sub(before) };
        if pages.added < wanted {
            let found = pages.added;
            return Err(Error::Other(format!(
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
