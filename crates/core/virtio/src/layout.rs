//! Memory layout of virtqueues (sections 2.7 and 2.8). All fields are little-endian.

/// Flags of a descriptor (2.7.5, 2.8.7).
pub mod flags {
    /// The chain continues: in the descriptor named by `next` (split), or in the next slot (packed).
    pub const NEXT: u16 = 1;
    /// The device writes to the buffer. In a used packed descriptor: the device has written something.
    pub const WRITE: u16 = 2;
    /// The buffer holds a table of descriptors.
    pub const INDIRECT: u16 = 4;
    /// Packed: equal to the driver's wrap counter when made available.
    pub const AVAIL: u16 = 1 << 7;
    /// Packed: unlike the driver's wrap counter when made available, equal to the device's when used.
    pub const USED: u16 = 1 << 15;
}

/// In the flags of the available ring, disables interrupts (2.7.6); in those of the used ring, notifications
/// (2.7.8).
pub const NO_NOTIFY: u16 = 1;

/// Flags of a packed ring's event suppression structures (2.8.10).
pub mod event {
    /// Notify at every change.
    pub const ENABLE: u16 = 0;
    /// Never notify.
    pub const DISABLE: u16 = 1;
    /// Notify when a certain descriptor is reached; only with [`EVENT_IDX`](crate::features::EVENT_IDX).
    pub const DESCRIPTOR: u16 = 2;
}

/// Most descriptors of a queue (2.7, 2.8).
pub const MAX_SIZE: u16 = 1 << 15;

/// Alignment of a queue and of its used ring that legacy devices require (2.7.2), in bytes.
pub const LEGACY_ALIGN: usize = 4096;
