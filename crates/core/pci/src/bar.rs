//! A BAR in memory, mapped into this process.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use crate::registers::{Bar, IoRegion};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::region_io::check;

/// Number of BARs of a device.
pub(crate) const BARS: usize = 6;

/// The registers of a memory BAR.
pub(crate) struct MappedBar {
    /// Start of the mapping, which consists of whole pages of `mapped` bytes.
    pages: NonNull<u8>,
    mapped: usize,
    /// Offset of the registers in the mapping, and their size in bytes.
    skip: usize,
    len: usize,
}

// SAFETY: `pages` points to a mapping that this value owns and that is not tied to a thread. Registers are
// reached by volatile accesses only, which any thread may do.
unsafe impl Send for MappedBar {}
// SAFETY: through a shared reference, registers are only read and written by single volatile accesses. No Rust
// reference to them is ever made, so concurrent accesses cannot break aliasing rules.
unsafe impl Sync for MappedBar {}

impl MappedBar {
    /// Maps `len` bytes of registers, from `offset` on, of the file through which the kernel exposes them. A
    /// BAR smaller than a page may begin inside one, at `skip` bytes, which must be a multiple of 16 as the
    /// addresses of BARs are.
    pub(crate) fn new(file: impl AsFd, offset: u64, skip: usize, len: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let mapped = skip.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size()));
        let mapped = mapped.filter(|_| skip.is_multiple_of(16)).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the address is null without `MAP_FIXED`, so the kernel chooses a free range and no existing
        // mapping is replaced.
        let pages = unsafe { mmap(std::ptr::null_mut(), mapped, prot, flags, file, offset) }?;
        let pages = NonNull::new(pages.cast()).expect("a mapping is not at address 0");
        Ok(Self { pages, mapped, skip, len })
    }

    /// Returns a pointer to the register at `offset`, as wide as `T`. Panics if it is unaligned or out of
    /// range.
    fn cell<T>(&self, offset: usize) -> NonNull<T> {
        check(offset, size_of::<T>(), self.len);
        // SAFETY: `check` has ensured `offset + size_of::<T>() <= len`, and `new` mapped at least `skip + len`
        // bytes, so the result is inside the mapping. It is aligned for `T`: `pages` is page-aligned, `skip` is
        // a multiple of 16 (checked in `new`) and `offset` is a multiple of the width (checked by `check`).
        unsafe { self.pages.byte_add(self.skip + offset).cast() }
    }

    fn get<T>(&self, offset: usize) -> T {
        // SAFETY: `cell` returns an aligned pointer into the mapping, which lives as long as `self`. `T` is
        // `u8`, `u16` or `u32`, for which any bits are a valid value.
        unsafe { self.cell::<T>(offset).as_ptr().read_volatile() }
    }

    fn put<T>(&self, offset: usize, value: T) {
        fence(Ordering::Release);
        // SAFETY: `cell` returns an aligned pointer into the mapping, which is writable and lives as long as
        // `self`.
        unsafe { self.cell::<T>(offset).as_ptr().write_volatile(value) }
    }
}

impl Drop for MappedBar {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping with these bounds, and only this value owns it. Pointers that
        // `doorbell` returned are not used afterwards: the holder of one keeps the BAR alive (contract of
        // `Bar`).
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), self.mapped) };
    }
}

// SAFETY: `cell` returns an aligned pointer into the mapping, which is writable and is unmapped only when
// `self` is dropped.
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
