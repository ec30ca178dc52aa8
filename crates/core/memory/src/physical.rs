//! Placement of memory: its physical addresses, which cards without an IOMMU use, and its NUMA node.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memmap2::MmapRaw;

use crate::Error;

/// Returns the physical address of each page of `page` bytes (Linux, admin-guide/mm/pagemap). The file has 8 bytes for each 4
/// KiB of address space, with the frame number in bits 0 to 54 and "present" in bit 63. Contiguity within a
/// page is checked at its last 4 KiB.
pub(crate) fn addresses(memory: &MmapRaw, page: usize) -> Result<Vec<u64>, Error> {
    const SMALL: usize = 4096;
    let io = |source| Error::Os { what: "/proc/self/pagemap", source };
    let pagemap = File::open("/proc/self/pagemap").map_err(io)?;
    let frame = |offset: usize| -> Result<u64, Error> {
        let mut entry = [0; 8];
        let at = (memory.as_ptr() as usize + offset) / SMALL * entry.len();
        pagemap.read_exact_at(&mut entry, at as u64).map_err(io)?;
        match u64::from_le_bytes(entry) & ((1 << 55) - 1) {
            0 => Err(Error::PhysicalHidden),
            frame => Ok(frame * SMALL as u64),
        }
    };
    let address = |offset| {
        let (first, last) = (frame(offset)?, frame(offset + page - SMALL)?);
        if last.wrapping_sub(first) == (page - SMALL) as u64 {
            Ok(first)
        } else {
            Err(Error::Config("a huge page is not contiguous in physical memory"))
        }
    };
    (0..memory.len()).step_by(page).map(address).collect()
}

/// Binds memory to a NUMA node, on machines with several nodes.
pub(crate) fn bind(memory: &MmapRaw, node: u32) -> Result<(), Error> {
    if node >= 64 || numa_nodes() <= 1 {
        return Ok(());
    }
    let mask = 1u64 << node;
    // SAFETY: the range is a mapping, whose content the call leaves as it is. The kernel reads `maxnode - 1` = 64 bits of the mask,
    // which has 64.
    let failed =
        unsafe { libc::syscall(libc::SYS_mbind, memory.as_ptr(), memory.len(), libc::MPOL_BIND, &mask, 65usize, 0) };
    if failed != 0 {
        return Err(Error::Os { what: "binding memory to the card's NUMA node", source: io::Error::last_os_error() });
    }
    Ok(())
}

fn numa_nodes() -> usize {
    let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    nodes.filter(|e| e.file_name().to_string_lossy().trim_start_matches("node").parse::<u32>().is_ok()).count()
}
