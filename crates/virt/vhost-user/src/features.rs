//! Feature bits of the vhost-user protocol ("Protocol features").

/// Bit among the device's features: protocol features can be negotiated (`VHOST_USER_F_PROTOCOL_FEATURES`).
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Bit among the device's features: the back-end logs the pages that it writes to (`VHOST_F_LOG_ALL`). It changes while rings run.
pub const LOG_ALL: u64 = 1 << 26;

/// Several queues, whose number can be queried.
pub const MQ: u64 = 1 << 0;
/// The log of written pages is in shared memory.
pub const LOG_SHMFD: u64 = 1 << 1;
/// The back-end sends RARP announcements for a migrated guest on request.
pub const RARP: u64 = 1 << 2;
/// Any request can ask for an acknowledgement.
pub const REPLY_ACK: u64 = 1 << 3;
/// The front-end sends the guest's MTU.
pub const NET_MTU: u64 = 1 << 4;
/// Chains in flight are recorded in shared memory that outlives either end.
pub const INFLIGHT_SHMFD: u64 = 1 << 12;
/// The device can be reset.
pub const RESET_DEVICE: u64 = 1 << 13;
/// Memory regions can be added and removed one by one.
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
/// The front-end can set and query the virtio device's status.
pub const STATUS: u64 = 1 << 16;
