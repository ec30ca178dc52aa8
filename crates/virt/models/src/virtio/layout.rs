//! Layout of the BARs.

/// BAR of the legacy interface, in I/O space.
pub(super) const LEGACY_BAR: usize = 0;
/// BAR of the MSI-X table and its pending bits.
pub(super) const MSIX_BAR: usize = 2;
pub(super) const MSIX_BAR_LEN: u64 = 0x4000;
pub(super) const PENDING: u32 = 0x2000;
/// BAR of the modern interface's structures.
pub(super) const MODERN_BAR: usize = 4;

/// Offsets of the structures in BAR 4, in bytes.
pub(super) const COMMON: usize = 0x0000;
pub(super) const COMMON_LEN: usize = 0x40;
pub(super) const ISR: usize = 0x1000;
pub(super) const DEVICE: usize = 0x2000;
pub(super) const NOTIFY: usize = 0x3000;
pub(super) const MODERN_LEN: usize = 0x4000;
/// Bytes between the notification addresses of two queues.
pub(super) const MULTIPLIER: usize = 4;
/// Size of BAR 0 in bytes.
pub(super) const LEGACY_LEN: usize = 64;
/// Offset of the legacy interface's notification register.
pub(super) const LEGACY_NOTIFY: usize = 16;
/// Size of the network configuration in bytes: MAC address, status, queue pairs, MTU (5.1.4).
pub(super) const CONFIG_LEN: usize = 12;
