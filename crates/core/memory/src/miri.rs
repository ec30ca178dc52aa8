//! A replacement for memory files under miri, which supports neither memfds nor shared mappings.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;

/// Returns an arbitrary file, and anonymous memory that is not backed by it.
pub(crate) fn map(len: usize, _flags: MemfdFlags) -> io::Result<(OwnedFd, MmapRaw)> {
    Ok((File::open("/dev/null")?.into(), MmapOptions::new().len(len).map_anon()?.into()))
}
