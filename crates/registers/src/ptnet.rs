//! The devices of netmap's passthrough: their numbers, and their registers of 32 bits in BAR 0. Offsets are in bytes.

/// Vendor of both.
pub const VENDOR: u16 = 0x1b36;

/// The memory.
pub mod memdev {
    /// PCI device id.
    pub const DEVICE: u16 = 0x000c;
    /// Bytes of the memory: low and high word.
    pub const SIZE: [u64; 2] = [0, 4];
    /// Number of the memory, by which its ports name it.
    pub const ID: u64 = 8;
    /// The pools of interface descriptors, rings and buffers: where it begins, how many objects it has, bytes of each.
    pub const POOLS: [[u64; 3]; 3] = [[64, 68, 72], [76, 80, 84], [88, 92, 96]];
    /// The BAR that is the memory.
    pub const MEMORY_BAR: u32 = 1;
}

/// A port.
pub mod port {
    /// PCI device id.
    pub const DEVICE: u16 = 0x000d;
    /// Features wanted, then accepted.
    pub const FEATURES: u64 = 0;
    /// A command, then its status: 0, or an errno.
    pub const CONTROL: u64 = 4;
    /// Bytes 2 to 5 of the address, and 0 and 1; the first in the highest bits.
    pub const MAC: [u64; 2] = [8, 12];
    /// Where the interface descriptor lies in the memory.
    pub const INTERFACE: u64 = 24;
    /// Rings to send, to receive.
    pub const RINGS: [u64; 2] = [28, 32];
    /// Slots of each.
    pub const SLOTS: [u64; 2] = [36, 40];
    /// Bytes of a header before each frame: wanted, then given.
    pub const HEADER_LEN: u64 = 44;
    /// Number of the memory.
    pub const MEMORY_ID: u64 = 48;
    /// Address of what the guest says of its rings: high and low word.
    pub const CSB_GUEST: [u64; 2] = [52, 56];
    /// Of what the guest is told.
    pub const CSB_HOST: [u64; 2] = [60, 64];
    /// The first ring's doorbell, to which 0 is written; the others' follow. Rings to send come first.
    pub const KICKS: u64 = 128;

    /// Commands: start to serve, stop.
    pub const CREATE: u32 = 1;
    /// See [`CREATE`].
    pub const DELETE: u32 = 2;
}
