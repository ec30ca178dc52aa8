//! Feature bits, as masks: those of network devices (section 5.1.3) and of all devices (section 6).

mod names;

pub use names::{DEPENDENCIES, describe, offer};

/// The device completes the checksums of frames that the driver transmits.
pub const CSUM: u64 = 1 << 0;
/// The driver accepts frames with partial checksums.
pub const GUEST_CSUM: u64 = 1 << 1;
/// The device reports its maximum MTU.
pub const MTU: u64 = 1 << 3;
/// The device has a MAC address.
pub const MAC: u64 = 1 << 5;
/// The driver accepts TSO frames over IPv4.
pub const GUEST_TSO4: u64 = 1 << 7;
/// The driver accepts TSO frames over IPv6.
pub const GUEST_TSO6: u64 = 1 << 8;
/// The driver accepts TSO frames with ECN.
pub const GUEST_ECN: u64 = 1 << 9;
/// The driver accepts UFO frames (UDP fragmentation).
pub const GUEST_UFO: u64 = 1 << 10;
/// The device accepts TSO frames over IPv4.
pub const HOST_TSO4: u64 = 1 << 11;
/// The device accepts TSO frames over IPv6.
pub const HOST_TSO6: u64 = 1 << 12;
/// The device accepts TSO frames with ECN.
pub const HOST_ECN: u64 = 1 << 13;
/// A received frame may span several buffers.
pub const MRG_RXBUF: u64 = 1 << 15;
/// The device reports whether the link is up.
pub const STATUS: u64 = 1 << 16;
/// The device has a control queue.
pub const CTRL_VQ: u64 = 1 << 17;
/// The control queue sets receive modes, such as promiscuous.
pub const CTRL_RX: u64 = 1 << 18;
/// The control queue sets VLAN filters.
pub const CTRL_VLAN: u64 = 1 << 19;
/// The control queue sets further receive modes.
pub const CTRL_RX_EXTRA: u64 = 1 << 20;
/// The device asks its driver to send gratuitous announcements.
pub const GUEST_ANNOUNCE: u64 = 1 << 21;
/// The device has several queue pairs.
pub const MQ: u64 = 1 << 22;
/// The control queue sets the MAC address.
pub const CTRL_MAC_ADDR: u64 = 1 << 23;
/// Legacy: the device notifies when the ring runs empty, even if notifications are disabled.
pub const NOTIFY_ON_EMPTY: u64 = 1 << 24;
/// Legacy: a frame and its header may be divided among descriptors in any way.
pub const ANY_LAYOUT: u64 = 1 << 27;
/// Descriptors may refer to tables of descriptors.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Each side asks for notifications by the ring index at which it wants the next one.
pub const EVENT_IDX: u64 = 1 << 29;
/// The device is not a legacy device.
pub const VERSION_1: u64 = 1 << 32;
/// The device uses addresses that the platform translates (those of an IOMMU).
pub const ACCESS_PLATFORM: u64 = 1 << 33;
/// Packed rings.
pub const RING_PACKED: u64 = 1 << 34;
/// The device uses buffers in the order in which they were made available.
pub const IN_ORDER: u64 = 1 << 35;
/// Memory barriers are those that a hardware device needs.
pub const ORDER_PLATFORM: u64 = 1 << 36;
/// Notifications carry the position in the ring.
pub const NOTIFICATION_DATA: u64 = 1 << 38;
/// Notifications carry a value that the device chose, instead of the queue's number.
pub const NOTIF_CONFIG_DATA: u64 = 1 << 39;
/// A queue can be reset on its own.
pub const RING_RESET: u64 = 1 << 40;
