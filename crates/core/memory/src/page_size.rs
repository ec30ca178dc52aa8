//! Page sizes, and how many huge pages there are.

use std::fmt;

/// Page size of a region's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PageSize {
    /// 4 KiB. Meant for software devices; refused with
    /// [`Addressing::Physical`](crate::Addressing::Physical).
    #[default]
    Ordinary = 4 << 10,
    /// 2 MiB.
    Huge2M = 2 << 20,
    /// 1 GiB.
    Huge1G = 1 << 30,
}

impl PageSize {
    /// Returns the size of a page in bytes.
    pub const fn bytes(self) -> usize {
        self as usize
    }

    /// Returns the path of a sysfs file about pages of this size.
    pub(crate) fn sysfs(self, file: &str) -> String {
        format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{file}", self.bytes() >> 10)
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

/// Returns how many huge pages of a size are free and not reserved, and how many the system has in all; zeros
/// where it has none.
pub fn huge_pages_free(size: PageSize) -> (usize, usize) {
    let read = |file| -> usize {
        std::fs::read_to_string(size.sysfs(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    (read("free_hugepages").saturating_sub(read("resv_hugepages")), read("nr_hugepages"))
}
