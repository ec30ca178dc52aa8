//! Access to the program's memory, in which its requests are.

use rustix::io::Errno;

/// Access to the program's memory. An invalid address other than 0 ends the program, as in any function of the
/// C library.
pub trait UserMemory {
    /// Reads `N` bytes at an address.
    fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], Errno>;
    /// Writes bytes at an address.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno>;
}
