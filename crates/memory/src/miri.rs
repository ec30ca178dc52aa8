//! A stand-in for memory files, which miri does not know, nor shared mappings.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;

/// Some file, and memory that is not its.
pub(crate) fn map(len: usize, _flags: MemfdFlags) -> io::Result<(OwnedFd, MmapRaw)> {
    Ok((File::open("/dev/null")?.into(), MmapOptions::new().len(len).map_anon()?.into()))
}
