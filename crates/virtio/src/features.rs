//! Feature bits, as masks: of network cards (section 5.1.3) and of all devices (section 6).

mod names;

pub use names::{NEEDS, describe, offer};

/// The device completes checksums of frames that it is sent.
pub const CSUM: u64 = 1 << 0;
/// The driver takes frames whose checksum is not filled in.
pub const GUEST_CSUM: u64 = 1 << 1;
/// The device says its largest MTU.
pub const MTU: u64 = 1 << 3;
/// The device has a MAC address.
pub const MAC: u64 = 1 << 5;
/// The driver takes segments of TCP over IPv4.
pub const GUEST_TSO4: u64 = 1 << 7;
/// The driver takes segments of TCP over IPv6.
pub const GUEST_TSO6: u64 = 1 << 8;
/// The driver takes segments with ECN.
pub const GUEST_ECN: u64 = 1 << 9;
/// The driver takes segments of UDP (fragments).
pub const GUEST_UFO: u64 = 1 << 10;
/// The device takes segments of TCP over IPv4.
pub const HOST_TSO4: u64 = 1 << 11;
/// The device takes segments of TCP over IPv6.
pub const HOST_TSO6: u64 = 1 << 12;
/// The device takes segments with ECN.
pub const HOST_ECN: u64 = 1 << 13;
/// Frames may lie in several receive buffers.
pub const MRG_RXBUF: u64 = 1 << 15;
/// The device says whether the link is up.
pub const STATUS: u64 = 1 << 16;
/// There is a control queue.
pub const CTRL_VQ: u64 = 1 << 17;
/// It takes promiscuous and the like.
pub const CTRL_RX: u64 = 1 << 18;
/// It takes VLAN filters.
pub const CTRL_VLAN: u64 = 1 << 19;
/// It takes finer receive modes.
pub const CTRL_RX_EXTRA: u64 = 1 << 20;
/// The device asks its driver to announce itself.
pub const GUEST_ANNOUNCE: u64 = 1 << 21;
/// There are several pairs of queues.
pub const MQ: u64 = 1 << 22;
/// The control queue sets the MAC address.
pub const CTRL_MAC_ADDR: u64 = 1 << 23;
/// Legacy: notify even if the ring is empty.
pub const NOTIFY_ON_EMPTY: u64 = 1 << 24;
/// Legacy: no assumption about how a frame and its header lie in descriptors.
pub const ANY_LAYOUT: u64 = 1 << 27;
/// Descriptors may hold tables of descriptors.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Notices are asked for by the index that they are to come at.
pub const EVENT_IDX: u64 = 1 << 29;
/// Not a legacy device.
pub const VERSION_1: u64 = 1 << 32;
/// The device uses the addresses that the platform translates: those of the IOMMU.
pub const ACCESS_PLATFORM: u64 = 1 << 33;
/// Packed rings.
pub const RING_PACKED: u64 = 1 << 34;
/// The device uses buffers in the order in which they were made available.
pub const IN_ORDER: u64 = 1 << 35;
/// Memory barriers as between a processor and a device of hardware.
pub const ORDER_PLATFORM: u64 = 1 << 36;
/// Notifications carry the ring's position.
pub const NOTIFICATION_DATA: u64 = 1 << 38;
/// Notifications carry what the device asks for, rather than the queue's number.
pub const NOTIF_CONFIG_DATA: u64 = 1 << 39;
/// A queue can be reset alone.
pub const RING_RESET: u64 = 1 << 40;
