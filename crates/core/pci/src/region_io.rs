//! Registers reached by read and write calls instead of mapped memory: through a file of the kernel, or by
//! messages to another process.

use std::io;
use std::os::fd::AsFd;

use crate::registers::IoRegion;

/// Carries out register accesses. If a call fails the device is gone: reads then return ones, as on PCI, and
/// writes are lost.
pub(crate) trait RegionIo: Send + Sync {
    /// Reads `out.len()` bytes at `offset` in one access.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes `bytes` at `offset` in one access.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
}

/// A register region accessed through a [`RegionIo`].
pub(crate) struct IndirectRegion<C> {
    pub(crate) region_io: C,
    pub(crate) len: usize,
    pub(crate) description: String,
}

impl<C: RegionIo> IndirectRegion<C> {
    fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        check(offset, N, self.len);
        let mut bytes = [0; N];
        self.region_io.read(offset as u64, &mut bytes).map_or([0xff; N], |()| bytes)
    }

    fn write<const N: usize>(&self, offset: usize, bytes: [u8; N]) {
        check(offset, N, self.len);
        let _ = self.region_io.write(offset as u64, &bytes);
    }
}

/// Panics unless an access is aligned and inside its region of `len` bytes.
pub(crate) fn check(offset: usize, width: usize, len: usize) {
    let inside = offset.is_multiple_of(width) && offset.checked_add(width).is_some_and(|end| end <= len);
    assert!(inside, "register of {width} bytes at {offset:#x} outside its region of {len:#x}");
}

impl<C: RegionIo> IoRegion for IndirectRegion<C> {
    fn len(&self) -> usize {
        self.len
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn read8(&self, offset: usize) -> u8 {
        u8::from_le_bytes(self.read(offset))
    }

    fn read16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.read(offset))
    }

    fn read32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.read(offset))
    }

    fn write8(&self, offset: usize, value: u8) {
        self.write(offset, value.to_le_bytes());
    }

    fn write16(&self, offset: usize, value: u16) {
        self.write(offset, value.to_le_bytes());
    }

    fn write32(&self, offset: usize, value: u32) {
        self.write(offset, value.to_le_bytes());
    }
}

/// Part of a file through which the kernel exposes a device. Each call is one access of the same width.
pub(crate) struct FileIo<F> {
    pub(crate) file: F,
    pub(crate) start: u64,
}

impl<F: AsFd + Send + Sync> RegionIo for FileIo<F> {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        read_at(&self.file, self.start + offset, out)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_at(&self.file, self.start + offset, bytes)
    }
}

/// Reads exactly `out.len()` bytes of a file in one system call.
pub(crate) fn read_at(file: impl AsFd, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let count = rustix::io::pread(file, &mut *out, offset)?;
    if count == out.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Writes exactly `bytes.len()` bytes to a file in one system call.
pub(crate) fn write_at(file: impl AsFd, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let count = rustix::io::pwrite(file, bytes, offset)?;
    if count == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Memory of 8 bytes that records each call; accesses beyond it fail.
    #[derive(Default)]
    struct Notes {
        region_io: Mutex<Vec<(u64, usize)>>,
        memory: Mutex<[u8; 8]>,
    }

    impl RegionIo for &Notes {
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.region_io.lock().unwrap().push((offset, out.len()));
            let memory = self.memory.lock().unwrap();
            let from = memory.get(offset as usize..offset as usize + out.len()).ok_or(io::ErrorKind::NotFound)?;
            out.copy_from_slice(from);
            Ok(())
        }

        fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.region_io.lock().unwrap().push((offset, bytes.len()));
            let mut memory = self.memory.lock().unwrap();
            let to = memory.get_mut(offset as usize..offset as usize + bytes.len()).ok_or(io::ErrorKind::NotFound)?;
            to.copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn each_access_is_one_call_of_its_width() {
        let notes = Notes::default();
        let region = IndirectRegion { region_io: &notes, len: 12, description: "notes".into() };
        region.write32(0, 0x4433_2211);
        region.write16(4, 0x6655);
        region.write8(6, 0x77);
        assert_eq!((region.read32(4), region.read16(2), region.read8(1)), (0x0077_6655, 0x4433, 0x22));
        // Accesses fail here, as those to a device that is gone.
        region.write32(8, 1);
        assert_eq!((region.read32(8), region.read16(10), region.read8(11)), (u32::MAX, u16::MAX, u8::MAX));
        let widths: Vec<usize> = notes.region_io.lock().unwrap().iter().map(|&(_, width)| width).collect();
        assert_eq!(widths, [4, 2, 1, 4, 2, 1, 4, 4, 2, 1]);
    }

    #[test]
    fn what_is_outside_or_unaligned_panics() {
        for (offset, width) in [(1, 2), (2, 4), (12, 1), (12, 4), (usize::MAX - 1, 2)] {
            assert!(std::panic::catch_unwind(|| check(offset, width, 12)).is_err(), "{offset} {width}");
        }
        check(8, 4, 12);
        check(10, 2, 12);
    }
}
