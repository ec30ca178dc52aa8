//! Access to the program's memory, in which its requests are.

use std::os::fd::OwnedFd;

use ringpass_memory::Memory;

use rustix::io::Errno;

use crate::external_memory::MemoryFile;

/// Access to the program's memory. An invalid address other than 0 ends the program, as in any function of the
/// C library.
pub trait UserMemory {
    /// Reads `N` bytes at an address.
    fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], Errno>;
    /// Writes bytes at an address.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno>;
    /// Returns the `len` bytes at an address, which the program keeps mapped as long as it uses them; `EFAULT` if they are not there.
    fn map(&self, at: u64, len: usize) -> Result<Memory, Errno>;
    /// Returns the file of the `len` bytes at an address, which the program gives to netmap; `EFAULT` if they are not there.
    fn file_of(&mut self, at: u64, len: u64) -> Result<MemoryFile, Errno>;
    /// Duplicates a descriptor of the program; `EBADF` if it is not open.
    fn duplicate(&self, fd: i32) -> Result<OwnedFd, Errno>;
}
