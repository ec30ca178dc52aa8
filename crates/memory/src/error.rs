//! What can go wrong with memory, and what helps.

use std::io;

use crate::PageSize;

/// What can go wrong with memory: the cause and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value outside its range.
    #[error("{0}")]
    Config(&'static str),
    /// Too few huge pages are free.
    #[error(
        "{need} huge pages of {} KiB are needed, {free} are free; reserve them: echo {} | sudo tee {}",
        size.bytes() >> 10, total + need - free.min(need), size.sysfs("nr_hugepages")
    )]
    HugePages {
        /// Which size.
        size: PageSize,
        /// Pages wanted.
        need: usize,
        /// Pages free.
        free: usize,
        /// Pages that the system has in all.
        total: usize,
    },
    /// `/proc/self/pagemap` hides physical addresses from this user.
    #[error("physical addresses are hidden; run as root (CAP_SYS_ADMIN), or use the card through VFIO")]
    PhysicalHidden,
    /// A real device without an IOMMU needs huge pages: ordinary ones move.
    #[error("a card without an IOMMU needs huge pages, because ordinary pages may move; leave out --hugepages off")]
    PhysicalOnOrdinaryPages,
    /// Memory that a card without an IOMMU uses must not be given to another process.
    #[error(
        "buffers of a card without an IOMMU are not shared with other processes, which could take the pages away; \
         use the card through VFIO, behind an IOMMU"
    )]
    PhysicalShared,
    /// The kernel refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The kernel's refusal of what was tried.
pub(crate) fn os(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Os { what, source }
}
