//! Errors of this crate.

use std::io;

use rustix::io::Errno;

use crate::{PageSize, huge_pages_free};

/// An error of memory allocation or mapping: the cause and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value outside of its range.
    #[error("{0}")]
    Config(&'static str),
    /// Too few huge pages are free.
    #[error(
        "{need} huge pages of {} KiB are needed, {free} are free; reserve them: echo {} | sudo tee {}",
        size.bytes() >> 10, total + need - free.min(need), size.sysfs("nr_hugepages")
    )]
    HugePages {
        /// Size of the pages.
        size: PageSize,
        /// Number of pages needed.
        need: usize,
        /// Number of free pages.
        free: usize,
        /// Number of pages that the system has in all.
        total: usize,
    },
    /// `/proc/self/pagemap` hides physical addresses from this user.
    #[error("physical addresses are hidden; run as root (CAP_SYS_ADMIN), or use the card through VFIO")]
    PhysicalHidden,
    /// A card without an IOMMU needs huge pages, because the kernel may move ordinary ones.
    #[error("a card without an IOMMU needs huge pages, because ordinary pages may move; leave out --hugepages off")]
    PhysicalOnOrdinaryPages,
    /// Memory that a card without an IOMMU uses must not be shared with another process.
    #[error(
        "buffers of a card without an IOMMU are not shared with other processes, which could take the pages away; \
         use the card through VFIO, behind an IOMMU"
    )]
    PhysicalShared,
    /// The kernel refused an operation.
    #[error("{what}: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Returns a function that wraps the kernel's error for the operation `what`.
pub(crate) fn os(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Os { what, source }
}

/// Returns the error for a failed allocation of `len` bytes on pages of this size.
pub(crate) fn refused(size: PageSize, len: usize, error: io::Error) -> Error {
    match (size, Errno::from_io_error(&error)) {
        // No such pages, or too few. Free ones may be reserved by others, which only the kernel knows.
        (PageSize::Huge2M | PageSize::Huge1G, Some(Errno::NOMEM | Errno::NODEV)) => {
            let (free, total) = huge_pages_free(size);
            Error::HugePages { size, need: len / size.bytes(), free, total }
        }
        _ => os("memory for DMA")(error),
    }
}
