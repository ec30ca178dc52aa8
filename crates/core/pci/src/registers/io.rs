//! Regions with registers of 8, 16 and 32 bits, as in virtio: in mapped memory or behind I/O ports.

/// A region of a device's registers.
///
/// Values are little-endian in the device and native here. Accesses by several threads do not tear. A thread's
/// accesses happen in the order in which it makes them.
///
/// All methods panic if an access is not aligned to its width or reaches beyond [`len`](Self::len). An offset
/// that comes from the device must therefore be checked first.
#[expect(clippy::len_without_is_empty, reason = "no region is empty")]
pub trait IoRegion: Send + Sync {
    /// Returns the length of the region in bytes.
    fn len(&self) -> usize;
    /// Describes how the region is accessed, for people: "mapped memory", "I/O ports by in and out instructions".
    fn description(&self) -> String;
    /// Reads 8 bits.
    fn read8(&self, offset: usize) -> u8;
    /// Reads 16 bits.
    fn read16(&self, offset: usize) -> u16;
    /// Reads 32 bits.
    fn read32(&self, offset: usize) -> u32;
    /// Writes 8 bits.
    fn write8(&self, offset: usize, value: u8);
    /// Writes 16 bits. The device sees everything that this thread has written to memory before.
    fn write16(&self, offset: usize, value: u16);
    /// Writes 32 bits. The device sees everything that this thread has written to memory before.
    fn write32(&self, offset: usize, value: u32);
}
