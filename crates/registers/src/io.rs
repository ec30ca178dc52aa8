//! Registers of 8, 16 and 32 bits, as virtio has them: in mapped memory or behind I/O ports.

/// A region of a device's registers. Values are little-endian on the device's side, native here. Accesses of different
/// threads do not tear; their order is the order in which they are made.
///
/// All methods panic if the access is not aligned to its width or reaches beyond [`len`](Self::len): whoever has an
/// offset from the device checks it first.
#[expect(clippy::len_without_is_empty, reason = "no region is empty")]
pub trait IoRegion: Send + Sync {
    /// Bytes.
    fn len(&self) -> usize;
    /// How it is reached, in some words for people: "mapped memory", "I/O ports by in and out instructions".
    fn description(&self) -> String;
    /// Reads 8 bits.
    fn read8(&self, offset: usize) -> u8;
    /// Reads 16 bits.
    fn read16(&self, offset: usize) -> u16;
    /// Reads 32 bits.
    fn read32(&self, offset: usize) -> u32;
    /// Writes 8 bits.
    fn write8(&self, offset: usize, value: u8);
    /// Writes 16 bits. All that this thread has written to memory before is seen by the device first.
    fn write16(&self, offset: usize, value: u16);
    /// Writes 32 bits, likewise.
    fn write32(&self, offset: usize, value: u32);
}
