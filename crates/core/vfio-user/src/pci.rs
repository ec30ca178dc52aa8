//! The PCI configuration space of a function (PCI Local Bus 3.0, chapter 6; PCI Express Base 3.0, chapter 7): a
//! type 0 header and a list of capabilities, with exact masks of the writable bits.

/// Ids, revision and class of a function.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Vendor and device id of the board.
    pub subsystem: (u16, u16),
    /// Revision id.
    pub revision: u8,
    /// Class code: base class, subclass, interface.
    pub class: u32,
}

/// Effect of a write to configuration space that the device has to handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The device has nothing to do.
    None,
    /// The value of [`ConfigSpace::bus_master`] may have changed.
    BusMaster,
    /// A function reset was requested. The configuration space has been reset already.
    Reset,
}

/// Size of a configuration space in bytes, with PCI Express's extended space, which is empty here.
const SIZE: usize = 4096;
/// Bytes in use.
const USED: usize = 256;

const VENDOR: usize = 0x00;
const COMMAND: usize = 0x04;
const COMMAND_MASTER: u8 = 1 << 2;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const REVISION: usize = 0x08;
const CACHE_LINE: usize = 0x0c;
const BARS: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;

/// The configuration space of a function.
#[derive(Clone)]
pub struct ConfigSpace {
    bytes: [u8; USED],
    initial: [u8; USED],
    /// Mask of the writable bits.
    writable: [u8; USED],
    /// Mask of the bits that are cleared by writing 1.
    w1c_mask: [u8; USED],
    /// Offset of the last capability's link to the next one, or of the header's pointer to the first.
    link: usize,
    power: Option<usize>,
    express: Option<usize>,
}

impl ConfigSpace {
    /// Size in bytes.
    pub const SIZE: u64 = SIZE as u64;

    /// Creates the configuration space of a function without BARs or capabilities.
    pub fn new(identity: &Identity) -> Self {
        let none = [0; USED];
        let link = CAPABILITIES;
        let mut space =
            Self { bytes: none, initial: none, writable: none, w1c_mask: none, link, power: None, express: None };
        space.set(VENDOR, &[identity.vendor, identity.device].map(u16::to_le_bytes).concat());
        let class = (identity.class << 8 | u32::from(identity.revision)).to_le_bytes();
        space.set(REVISION, &class);
        space.set(SUBSYSTEM, &[identity.subsystem.0, identity.subsystem.1].map(u16::to_le_bytes).concat());
        space.set(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        // Memory space, bus master, parity, SERR#, INTx disable. Not I/O space, which only a function with an
        // I/O BAR has.
        space.set_writable(COMMAND, &0x0546u16.to_le_bytes());
        space.w1c_mask[STATUS + 1] = 0xf9; // 6.2.3: errors seen and signalled
        space.set_writable(CACHE_LINE, &[0xff]);
        space.set_writable(INTERRUPT_LINE, &[0xff]);
        space
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.initial[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn set_writable(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Adds a BAR in 64-bit prefetchable memory space, at BARs `index` and `index + 1`. `size` is a power of
    /// two of at least 16 bytes; software finds it from the bits that cannot be written (6.2.5.1).
    pub fn memory_bar(mut self, index: usize, size: u64) -> Self {
        assert!(size.is_power_of_two() && size >= 16 && index < 5, "a BAR of {size} bytes at {index}");
        self.set(BARS + 4 * index, &0b1100u64.to_le_bytes());
        self.set_writable(BARS + 4 * index, &(!(size - 1)).to_le_bytes());
        self
    }

    /// Adds a BAR in 32-bit memory space that is not prefetchable, for registers. `size` is a power of two from
    /// 16 bytes to 2 GiB.
    pub fn register_bar(mut self, index: usize, size: u32) -> Self {
        assert!(size.is_power_of_two() && size >= 16 && index < 6, "a BAR of {size} bytes at {index}");
        self.set_writable(BARS + 4 * index, &(!(size - 1)).to_le_bytes());
        self
    }

    /// Adds a BAR in I/O space. `size` is a power of two from 4 to 256 bytes.
    pub fn io_bar(mut self, index: usize, size: u32) -> Self {
        assert!(
            size.is_power_of_two() && (4..=256).contains(&size) && index < 6,
            "an I/O BAR of {size} bytes at {index}"
        );
        self.set(BARS + 4 * index, &1u32.to_le_bytes());
        self.set_writable(BARS + 4 * index, &(!(size - 1)).to_le_bytes());
        self.writable[COMMAND] |= 1;
        self
    }

    /// Adds a vendor-specific capability (PCI Local Bus 3.0, appendix H). `bytes` follow its length field.
    pub fn vendor_specific(self, at: usize, bytes: &[u8]) -> Self {
        self.capability(at, 0x09, &[&[bytes.len() as u8 + 3], bytes].concat())
    }

    /// Adds a capability. `bytes` follow its id and link.
    fn capability(mut self, at: usize, id: u8, bytes: &[u8]) -> Self {
        self.set(self.link, &[at as u8]);
        self.set(at, &[id, 0]);
        self.set(at + 2, bytes);
        self.link = at + 1;
        self
    }

    /// Adds power management (PCI Power Management 1.2, 3.2) with the states D0 and D3. A return from D3 to D0
    /// resets the function.
    pub fn power_management(self, at: usize) -> Self {
        // Version 3, device specific initialisation, PME# from D0 and D3hot.
        let mut space = self.capability(at, 0x01, &[0x23, 0x48, 0, 0, 0, 0]);
        space.set_writable(at + 4, &[0x03, 0x01]); // the state, PME_En
        space.w1c_mask[at + 5] = 0x80; // PME_Status
        space.power = Some(at + 4);
        space
    }

    /// Adds MSI-X (6.8.2). `table` and `pending` give the BAR and the offset of the vector table and of the
    /// pending bits.
    pub fn msix(self, at: usize, vectors: u16, table: (u32, u32), pending: (u32, u32)) -> Self {
        let [control, table, pending] =
            [u32::from(vectors - 1), table.1 | table.0, pending.1 | pending.0].map(u32::to_le_bytes);
        let mut space = self.capability(at, 0x11, &[&control[..2], &table, &pending].concat());
        space.set_writable(at + 3, &[0xc0]); // enable, function mask
        space
    }

    /// Adds PCI Express (7.8), version 2: an endpoint of 5 GT/s with 8 lanes that supports function level
    /// reset.
    pub fn express(self, at: usize) -> Self {
        let mut bytes = [0; 0x3a];
        let mut put = |at: usize, value: u32| bytes[at - 2..at + 2].copy_from_slice(&value.to_le_bytes());
        put(0x04, 1 << 28 | 1 << 15 | 6 << 9 | 3 << 6 | 2); // FLR, role-based errors, latencies, 512 bytes payload
        put(0x08, 0x2810); // relaxed ordering, 512 bytes requests, no snoop
        put(0x0c, 3 << 10 | 8 << 4 | 2); // L0s and L1, 8 lanes, 5 GT/s
        put(0x10, (1 << 12 | 8 << 4 | 2) << 16); // link status: slot clock, as trained
        put(0x24, 0x1f); // completion timeouts
        put(0x2c, 0b11 << 1); // 2.5 and 5 GT/s
        put(0x30, 2); // target 5 GT/s
        let mut space = self.capability(at, 0x10, &[&[0x02, 0x00], &bytes[2..]].concat());
        space.set_writable(at + 0x08, &0x7fffu16.to_le_bytes());
        space.w1c_mask[at + 0x0a] = 0x0f;
        space.set_writable(at + 0x10, &0x00cbu16.to_le_bytes());
        space.set_writable(at + 0x28, &0x001fu16.to_le_bytes());
        space.set_writable(at + 0x30, &0x000fu16.to_le_bytes());
        space.express = Some(at);
        space
    }

    /// Reads for a driver. Bytes out of range are zero.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for (at, byte) in (offset as usize..).zip(out) {
            *byte = self.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// Writes for a driver, and returns what the device has to handle.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Change {
        let (mastered, was_off) = (self.bus_master(), self.powered_off());
        let mut flr = false;
        for (at, &byte) in (offset as usize..USED).zip(data) {
            self.bytes[at] = self.bytes[at] & !self.writable[at] | byte & self.writable[at];
            self.bytes[at] &= !(byte & self.w1c_mask[at]);
            // 7.8.4: Initiate Function Level Reset; the bit reads as 0.
            flr |= self.express.is_some_and(|express| at == express + 0x09) && byte & 0x80 != 0;
        }
        if flr || was_off && !self.powered_off() {
            self.reset();
            return Change::Reset;
        }
        if self.bus_master() != mastered { Change::BusMaster } else { Change::None }
    }

    /// Resets everything to the state after power-on.
    pub fn reset(&mut self) {
        self.bytes = self.initial;
    }

    /// Returns whether the function may start DMA: it is a bus master and not in D3.
    pub fn bus_master(&self) -> bool {
        self.bytes[COMMAND] & COMMAND_MASTER != 0 && !self.powered_off()
    }

    /// Returns whether the function is in D3.
    fn powered_off(&self) -> bool {
        self.power.is_some_and(|at| self.bytes[at] & 0b11 == 0b11)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn card() -> ConfigSpace {
        let identity =
            Identity { vendor: 0x8086, device: 0x10fb, subsystem: (0x8086, 0x000c), revision: 1, class: 0x020000 };
        ConfigSpace::new(&identity)
            .memory_bar(0, 128 << 10)
            .memory_bar(4, 16 << 10)
            .power_management(0x40)
            .msix(0x70, 64, (4, 0), (4, 0x2000))
            .express(0xa0)
    }

    fn read(space: &ConfigSpace, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn the_header() {
        let space = card();
        assert_eq!(read(&space, 0x00), 0x10fb_8086);
        assert_eq!(read(&space, 0x04), 0x0010_0000);
        assert_eq!(read(&space, 0x08), 0x0200_0001);
        assert_eq!(read(&space, 0x2c), 0x000c_8086);
        assert_eq!((read(&space, 0x100), read(&space, 0xffc)), (0, 0));
    }

    #[test]
    fn the_list_of_capabilities() {
        let space = card();
        let (mut at, mut found) = (read(&space, 0x34) as u8, Vec::new());
        while at != 0 {
            let [id, next, ..] = read(&space, at.into()).to_le_bytes();
            found.push((at, id));
            at = next;
        }
        assert_eq!(found, [(0x40, 0x01), (0x70, 0x11), (0xa0, 0x10)]);
        assert_eq!(read(&space, 0x70) >> 16, 63, "64 vectors");
        assert_eq!((read(&space, 0x74), read(&space, 0x78)), (4, 0x2004));
        assert_eq!(read(&space, 0xb0) >> 16 & 0x3ff, 0x082, "8 lanes at 5 GT/s");
        assert_eq!(read(&space, 0xa8) >> 16, 0, "no transaction pends");
    }

    #[test]
    fn bars_tell_their_sizes() {
        let mut space = card();
        for (bar, low) in [(0x10, 0xfffe_000c), (0x14, u32::MAX), (0x18, 0), (0x20, 0xffff_c00c), (0x24, u32::MAX)] {
            assert_eq!(space.write(bar, &u32::MAX.to_le_bytes()), Change::None);
            assert_eq!(read(&space, bar), low, "{bar:#x}");
        }
        space.write(0x10, &0xfebe_0000u32.to_le_bytes());
        assert_eq!(read(&space, 0x10), 0xfebe_000c);
    }

    #[test]
    fn a_bar_of_registers_takes_one_place() {
        let mut space = card().register_bar(2, 4096);
        for (bar, low) in [(0x10, 0xfffe_000c), (0x18, 0xffff_f000), (0x1c, 0)] {
            space.write(bar, &u32::MAX.to_le_bytes());
            assert_eq!(read(&space, bar), low, "{bar:#x}");
        }
    }

    #[test]
    fn changes() {
        let mut space = card();
        assert_eq!(space.write(0x04, &[0x06, 0]), Change::BusMaster);
        assert!(space.bus_master());
        assert_eq!(space.write(0x04, &[0x06, 0x04]), Change::None);
        // D3 stops DMA; returning from it resets.
        assert_eq!(space.write(0x44, &[0x03]), Change::BusMaster);
        assert!(!space.bus_master());
        assert_eq!(space.write(0x44, &[0x00]), Change::Reset);
        assert_eq!(read(&space, 0x04), 0x0010_0000);
        // A function level reset: bit 15 of device control, in a write of any width.
        space.write(0x10, &0xfebe_0000u32.to_le_bytes());
        for (offset, data) in [(0xa8, [0x10, 0xa8].as_slice()), (0xa9, &[0x80]), (0xa6, &[0, 0, 0, 0x80])] {
            space.write(0x04, &[0x06, 0]);
            assert_eq!(space.write(offset, data), Change::Reset);
            assert!(!space.bus_master());
            assert_eq!((read(&space, 0xa8) & 0x8000, read(&space, 0x10)), (0, 0xc));
        }
    }

    #[test]
    fn ones_clear_status() {
        let mut space = card();
        space.bytes[0x07] = 0xf9;
        space.write(0x04, &[0, 0, 0, 0x81]);
        assert_eq!(space.bytes[0x07], 0x78);
    }

    proptest! {
        /// Read-only bits never change, whatever is written where.
        #[test]
        fn read_only_bits_stay(writes in prop::collection::vec((0u64..0x1010, prop::collection::vec(any::<u8>(), 0..9)), 0..40)) {
            let fresh = card();
            let mut space = card();
            for (offset, data) in writes {
                space.write(offset, &data);
            }
            for at in 0..USED {
                prop_assert_eq!(space.bytes[at] & !space.writable[at], fresh.bytes[at] & !space.writable[at]);
            }
        }
    }
}
