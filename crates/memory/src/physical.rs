//! Where memory lies: its physical addresses, which cards without an IOMMU use, and its NUMA node.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::{DmaRegion, Error};

/// The physical address of each page (Linux, admin-guide/mm/pagemap): 8 bytes for each 4 KiB of address space, the
/// frame number in bits 0 to 54, present in bit 63. Contiguity within a page is checked at its last 4 KiB.
pub(crate) fn addresses(region: &DmaRegion) -> Result<Vec<u64>, Error> {
    const SMALL: usize = 4096;
    let io = |source| Error::Os { what: "/proc/self/pagemap", source };
    let pagemap = File::open("/proc/self/pagemap").map_err(io)?;
    let frame = |offset: usize| -> Result<u64, Error> {
        let mut entry = [0; 8];
        let at = region.at(offset) as usize / SMALL * entry.len();
        pagemap.read_exact_at(&mut entry, at as u64).map_err(io)?;
        match u64::from_le_bytes(entry) & ((1 << 55) - 1) {
            0 => Err(Error::PhysicalHidden),
            frame => Ok(frame * SMALL as u64),
        }
    };
    let page = region.config().pages.bytes();
    let address = |offset| {
        let (first, last) = (frame(offset)?, frame(offset + page - SMALL)?);
        if last.wrapping_sub(first) == (page - SMALL) as u64 {
            Ok(first)
        } else {
            Err(Error::Config("a huge page is not contiguous in physical memory"))
        }
    };
    (0..region.len()).step_by(page).map(address).collect()
}

/// Has the pages of a region come from the NUMA node that it was configured for, where there are several.
pub(crate) fn bind(region: &DmaRegion) -> Result<(), Error> {
    let Some(node) = region.config().numa_node.filter(|&node| node < 64 && numa_nodes() > 1) else { return Ok(()) };
    let mask = 1u64 << node;
    // SAFETY: the range is the region's mapping; the mask has 64 bits, as said (the kernel subtracts one).
    let failed =
        unsafe { libc::syscall(libc::SYS_mbind, region.at(0), region.len(), libc::MPOL_BIND, &mask, 65usize, 0) };
    if failed != 0 {
        return Err(Error::Os { what: "binding memory to the card's NUMA node", source: io::Error::last_os_error() });
    }
    Ok(())
}

fn numa_nodes() -> usize {
    let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    nodes.filter(|e| e.file_name().to_string_lossy().trim_start_matches("node").parse::<u32>().is_ok()).count()
}
