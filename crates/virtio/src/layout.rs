//! How virtqueues lie in memory (sections 2.7 and 2.8). All fields are little-endian.

/// Flags of a descriptor (2.7.5, 2.8.7).
pub mod flags {
    /// The chain goes on: split rings, in `next`; packed ones, in the next slot.
    pub const NEXT: u16 = 1;
    /// The device writes to it. In a used packed descriptor: it has written something.
    pub const WRITE: u16 = 2;
    /// It holds a table of descriptors.
    pub const INDIRECT: u16 = 4;
    /// Packed: equal to the driver's wrap counter when made available.
    pub const AVAIL: u16 = 1 << 7;
    /// Packed: unlike the driver's wrap counter when made available, equal to the device's when used.
    pub const USED: u16 = 1 << 15;
}

/// In the flags of the available ring: no interrupts, please (2.7.6); of the used ring: no notifications (2.7.8).
pub const NO_NOTICE: u16 = 1;

/// Flags of a packed ring's event suppression structures (2.8.10).
pub mod event {
    /// At every change.
    pub const ENABLE: u16 = 0;
    /// Never.
    pub const DISABLE: u16 = 1;
    /// When a certain descriptor is reached; with [`EVENT_IDX`](crate::features::EVENT_IDX) only.
    pub const DESCRIPTOR: u16 = 2;
}

/// Most descriptors of a queue (2.7, 2.8).
pub const MAX_SIZE: u16 = 1 << 15;

/// What legacy devices align a queue and its used ring to (2.7.2).
pub const LEGACY_ALIGN: usize = 4096;
