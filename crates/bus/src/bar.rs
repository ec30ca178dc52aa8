//! A BAR, mapped into this process.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use ringpass_registers::{Bar, IoRegion};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::calls::check;

/// BARs of a device.
pub(crate) const BARS: usize = 6;

/// Registers in memory.
pub(crate) struct MappedBar {
    /// The mapping: whole pages.
    pages: NonNull<u8>,
    mapped: usize,
    /// Where the registers begin in it, and how many bytes of them there are.
    skip: usize,
    len: usize,
}

// SAFETY: registers are reached by volatile accesses only, which any thread may do.
unsafe impl Send for MappedBar {}
// SAFETY: as above.
unsafe impl Sync for MappedBar {}

impl MappedBar {
    /// Maps `len` bytes of registers through the file in which the kernel shows them from `offset` on. A BAR smaller
    /// than a page may begin inside one, by `skip` bytes, which are a multiple of 16 as BARs are.
    pub(crate) fn new(file: impl AsFd, offset: u64, skip: usize, len: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let mapped = skip.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size()));
        let mapped = mapped.filter(|_| skip.is_multiple_of(16)).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let pages = unsafe { mmap(std::ptr::null_mut(), mapped, prot, flags, file, offset) }?;
        let pages = NonNull::new(pages.cast()).expect("a mapping is not at address 0");
        Ok(Self { pages, mapped, skip, len })
    }

    /// A register, as wide as `T`.
    fn cell<T>(&self, offset: usize) -> NonNull<T> {
        check(offset, size_of::<T>(), self.len);
        // SAFETY: inside the mapping, as just checked, and aligned, as `new` has checked of `skip`.
        unsafe { self.pages.byte_add(self.skip + offset).cast() }
    }

    fn get<T>(&self, offset: usize) -> T {
        // SAFETY: `cell` checks range and alignment; any bits are a value of the integers that this is called for.
        unsafe { self.cell::<T>(offset).as_ptr().read_volatile() }
    }

    fn put<T>(&self, offset: usize, value: T) {
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { self.cell::<T>(offset).as_ptr().write_volatile(value) }
    }
}

impl Drop for MappedBar {
    fn drop(&mut self) {
        // SAFETY: this BAR's own mapping; doorbells hold the BAR.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), self.mapped) };
    }
}

// SAFETY: `cell` checks the range, and the mapping lives as long as `self`.
unsafe impl Bar for MappedBar {
    fn read(&self, offset: u32) -> u32 {
        self.get(offset as usize)
    }

    fn write(&self, offset: u32, value: u32) {
        self.put(offset as usize, value);
    }

    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        self.cell(offset as usize)
    }
}

impl IoRegion for MappedBar {
    fn len(&self) -> usize {
        self.len
    }

    fn description(&self) -> String {
        "registers in mapped memory".into()
    }

    fn read8(&self, offset: usize) -> u8 {
        self.get(offset)
    }

    fn read16(&self, offset: usize) -> u16 {
        self.get(offset)
    }

    fn read32(&self, offset: usize) -> u32 {
        self.get(offset)
    }

    fn write8(&self, offset: usize, value: u8) {
        self.put(offset, value);
    }

    fn write16(&self, offset: usize, value: u16) {
        self.put(offset, value);
    }

    fn write32(&self, offset: usize, value: u32) {
        self.put(offset, value);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn registers_inside_a_page_are_reached_at_each_width() {
        let file = memfd_create("registers", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, page_size() as u64).expect("room");
        assert!(MappedBar::new(&file, 0, 8, 16).is_err(), "no BAR begins there");
        let bar = MappedBar::new(&file, 0, 256, 32).expect("a mapping");
        bar.write32(0, 0x4433_2211);
        bar.write16(4, 0x6655);
        bar.write8(31, 0x77);
        assert_eq!((bar.read8(1), bar.read16(2), Bar::read(&bar, 4)), (0x22, 0x4433, 0x6655));
        let mut bytes = [0; 32];
        rustix::io::pread(&file, &mut bytes, 256).expect("the registers");
        assert_eq!((bytes[..6].to_vec(), bytes[31]), (vec![0x11, 0x22, 0x33, 0x44, 0x55, 0x66], 0x77));
        let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bar.read32(32)));
        assert!(outside.is_err());
    }
}
