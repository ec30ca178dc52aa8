//! A BAR, mapped into this process.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use ringpass_registers::Bar;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Registers in memory.
pub(crate) struct MappedBar {
    start: NonNull<u32>,
    len: usize,
}

// SAFETY: registers are reached by volatile accesses only, which any thread may do.
unsafe impl Send for MappedBar {}
// SAFETY: as above.
unsafe impl Sync for MappedBar {}

impl MappedBar {
    /// Maps `len` bytes of the file in which the kernel shows the device's registers.
    pub(crate) fn new(file: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, offset) }?;
        Ok(Self { start: NonNull::new(start.cast()).expect("a mapping is not at address 0"), len })
    }

    fn cell(&self, offset: u32) -> NonNull<u32> {
        let inside = offset.is_multiple_of(4) && (offset as usize) < self.len;
        assert!(inside, "register {offset:#x} outside the BAR");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.byte_add(offset as usize) }
    }
}

impl Drop for MappedBar {
    fn drop(&mut self) {
        // SAFETY: this BAR's own mapping; doorbells hold the BAR.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: `cell` checks the range, and the mapping lives as long as `self`.
unsafe impl Bar for MappedBar {
    fn read(&self, offset: u32) -> u32 {
        // SAFETY: as above.
        unsafe { self.cell(offset).as_ptr().read_volatile() }
    }

    fn write(&self, offset: u32, value: u32) {
        // SAFETY: as above.
        unsafe { self.cell(offset).as_ptr().write_volatile(value) }
    }

    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        self.cell(offset)
    }
}
