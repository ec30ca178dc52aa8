//! How many huge pages there are, and what to say when they do not suffice.

use std::{fmt, io};

use rustix::io::Errno;

use crate::error::os;
use crate::{Error, PageSize};

impl PageSize {
    /// A file of the kernel's about pages of this size.
    pub(crate) fn sysfs(self, file: &str) -> String {
        format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{file}", self.bytes() >> 10)
    }

    /// Why the kernel gave no `len` bytes on pages of this size.
    pub(crate) fn refused(self, len: usize, error: io::Error) -> Error {
        match (self, Errno::from_io_error(&error)) {
            // No such pages, or too few. Free ones may be promised to others; the kernel alone knows.
            (Self::Huge2M | Self::Huge1G, Some(Errno::NOMEM | Errno::NODEV)) => {
                let (free, total) = huge_pages_free(self);
                Error::HugePages { size: self, need: len / self.bytes(), free, total }
            }
            _ => os("memory for DMA")(error),
        }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordinary => "4 KiB",
            Self::Huge2M => "2 MiB",
            Self::Huge1G => "1 GiB",
        })
    }
}

/// Huge pages of a size that are free and not promised to others, and that the system has in all; zeros where it has
/// none.
pub fn huge_pages_free(size: PageSize) -> (usize, usize) {
    let read = |file| -> usize {
        std::fs::read_to_string(size.sysfs(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    (read("free_hugepages").saturating_sub(read("resv_hugepages")), read("nr_hugepages"))
}
