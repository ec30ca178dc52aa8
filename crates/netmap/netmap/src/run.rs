//! Fast path: copies frames in one slot each, the common case, from a region to packets.

use ringpass_memory::{Burst, Cache, copy};

use crate::{Buffers, Flags, Slot};

/// Longest frame in bytes, over all its slots.
pub const MAX_FRAME_LEN: usize = 1 << 16;
/// Shortest frame in bytes: an Ethernet header.
pub const MIN_FRAME_LEN: usize = 14;
/// Flags of slots that the fast path does not handle.
pub const SPECIAL: Flags = Flags(Flags::MORE_FRAGMENTS.0 | Flags::INDIRECT.0 | Flags::NO_LEARN.0);

/// Copies frames in one slot each to one packet each. Stops at the first slot that is not plain, or when the
/// burst or the pool is full or empty, respectively. Returns the number of frames and their bytes.
#[inline(always)]
pub fn read_run(
    region: &Buffers,
    slots: impl ExactSizeIterator<Item = Slot>,
    cache: &mut Cache,
    burst: &mut Burst,
) -> (usize, usize) {
    let span = cache.pool().buffer_size().min(MAX_FRAME_LEN) - MIN_FRAME_LEN;
    let mut buffers = cache.packets(slots.len().min(burst.room()));
    let (mut run, mut bytes) = (0, 0);
    for (slot, place) in slots.zip(burst.spare()) {
        let len = usize::from(slot.len);
        if slot.flags.any(SPECIAL) || len.wrapping_sub(MIN_FRAME_LEN) > span {
            break;
        }
        let Some(from) = region.at(slot.buffer, 0, len) else { break };
        let Some(packet) = buffers.next() else { break };
        // SAFETY: `at` checked that `len` bytes lie in the region, which stays mapped while `region` is
        // borrowed. `packet` is a whole buffer as `Cache::packets` made it, with `buffer_size` bytes, and
        // `len <= buffer_size`: the check against `span` bounds it by `span + MIN_FRAME_LEN`. Buffers of a pool
        // are accessed by raw pointers only, so nobody has a reference to it. `packet` is forgotten below, so
        // the copy of its handle alone owns the buffer.
        unsafe {
            copy(from.as_ptr(), packet.as_ptr(), len);
            place.write(packet.copy_received(0, len));
        }
        std::mem::forget(packet);
        (run, bytes) = (run + 1, bytes + len);
    }
    // SAFETY: the loop has written a packet to each of the first `run` places of `burst.spare()`, in order.
    unsafe { burst.commit(run) };
    (run, bytes)
}
