//! Features of the protocol itself ("Protocol features").

/// Among a device's features: protocol features are spoken of.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Several queues, and how many there are can be asked.
pub const MQ: u64 = 1 << 0;
/// Frames that show the network where the guest is can be asked for.
pub const RARP: u64 = 1 << 2;
/// Any request can be acknowledged.
pub const REPLY_ACK: u64 = 1 << 3;
/// The guest's MTU is told.
pub const NET_MTU: u64 = 1 << 4;
/// What is in flight is noted in memory that outlives either end.
pub const INFLIGHT_SHMFD: u64 = 1 << 12;
/// The device can be reset.
pub const RESET_DEVICE: u64 = 1 << 13;
/// Memory regions come and go one by one.
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
/// The virtio device's status is told and asked for.
pub const STATUS: u64 = 1 << 16;
