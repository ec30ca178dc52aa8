//! The PCI devices of netmap passthrough (ptnet): their ids, and their 32-bit registers in BAR 0. Offsets are
//! in bytes.

/// PCI vendor id of both devices.
pub const VENDOR: u16 = 0x1b36;

/// The memory device.
pub mod memdev {
    /// PCI device id.
    pub const DEVICE: u16 = 0x000c;
    /// Size of the memory in bytes: low and high word.
    pub const SIZE: [u64; 2] = [0, 4];
    /// Number of the memory, by which its ports refer to it.
    pub const ID: u64 = 8;
    /// The pools of interface descriptors, of rings and of buffers: offset in the memory, number of objects,
    /// bytes of each object.
    pub const POOLS: [[u64; 3]; 3] = [[64, 68, 72], [76, 80, 84], [88, 92, 96]];
    /// The BAR that holds the memory.
    pub const MEMORY_BAR: u32 = 1;
}

/// The port device.
pub mod port {
    /// PCI device id.
    pub const DEVICE: u16 = 0x000d;
    /// Features that the driver requests; reads give those accepted.
    pub const FEATURES: u64 = 0;
    /// Command; reads give its status: 0, or an errno.
    pub const CONTROL: u64 = 4;
    /// MAC address: bytes 2 to 5, then bytes 0 and 1. In each register, the first byte is the most significant.
    pub const MAC: [u64; 2] = [8, 12];
    /// Offset of the interface descriptor in the memory.
    pub const INTERFACE: u64 = 24;
    /// Number of Tx rings, number of Rx rings.
    pub const RINGS: [u64; 2] = [28, 32];
    /// Number of slots of a Tx ring, of an Rx ring.
    pub const SLOTS: [u64; 2] = [36, 40];
    /// Bytes of the header before each frame that the driver requests; reads give those granted.
    pub const HEADER_LEN: u64 = 44;
    /// Number of the memory.
    pub const MEMORY_ID: u64 = 48;
    /// Address of the guest's half of the CSB, which the guest writes: high and low word.
    pub const CSB_GUEST: [u64; 2] = [52, 56];
    /// Address of the host's half of the CSB, which the guest reads: high and low word.
    pub const CSB_HOST: [u64; 2] = [60, 64];
    /// Doorbell of the first ring, to which 0 is written. Those of the other rings follow; Tx rings come first.
    pub const KICKS: u64 = 128;

    /// Command: start serving the rings.
    pub const CREATE: u32 = 1;
    /// Command: stop serving the rings.
    pub const DELETE: u32 = 2;
}
