//! Frames in one slot each, the many, from a region to packets.
#![allow(unsafe_code)]

use ringpass_memory::{Burst, Cache, copy};

use super::frame::SPECIAL;
use super::{LONGEST, SHORTEST};
use crate::{Buffers, Slot};

/// Copies frames that lie in one slot each to a packet each, up to the first slot that is not such, or until the burst or
/// the pool has no room. Returns how many, and their bytes.
#[inline(always)]
pub(crate) fn read_run(
    region: &Buffers,
    slots: impl ExactSizeIterator<Item = Slot>,
    cache: &mut Cache,
    burst: &mut Burst,
) -> (usize, usize) {
    let span = cache.pool().buffer_size().min(LONGEST) - SHORTEST;
    let mut buffers = cache.packets(slots.len().min(burst.room()));
    let (mut run, mut bytes) = (0, 0);
    for (slot, place) in slots.zip(burst.spare()) {
        let len = usize::from(slot.len);
        if slot.flags.any(SPECIAL) || len.wrapping_sub(SHORTEST) > span {
            break;
        }
        let Some(from) = region.at(slot.buffer, 0, len) else { break };
        let Some(packet) = buffers.next() else { break };
        // SAFETY: `len` bytes of the region, which is mapped, to a whole buffer of the pool, which has as many, as `span`
        // says. The packet is forgotten once it was copied.
        unsafe {
            copy(from.as_ptr(), packet.as_ptr(), len);
            place.write(packet.copy_received(0, len));
        }
        std::mem::forget(packet);
        (run, bytes) = (run + 1, bytes + len);
    }
    // SAFETY: as many places were written, from the first on.
    unsafe { burst.commit(run) };
    (run, bytes)
}
