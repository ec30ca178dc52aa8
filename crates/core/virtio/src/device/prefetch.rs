//! Prefetches of a guest's memory. Moving a line between two processors takes longer than all work on a packet, so
//! many transfers must be in flight at a time.

use ringpass_memory::{Access, prefetch};

use super::DeviceAccess;

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;

/// Prefetches the lines in which a frame begins: virtio header, addresses, all of a short frame.
#[inline(always)]
pub(super) fn prefetch_frame(start: *const u8, access: DeviceAccess) {
    let access = match access {
        DeviceAccess::Read => Access::Read,
        DeviceAccess::Write => Access::ReadWrite,
    };
    prefetch(start, access);
    prefetch(start.wrapping_add(LINE), access);
}
