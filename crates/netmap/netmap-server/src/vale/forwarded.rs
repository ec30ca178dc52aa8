//! Frames that programs pass on from their Rx rings: with `NR_FORWARD` in a ring's flags, a slot that is released with `NS_FORWARD`
//! goes on to the other side of a native port, which is the host's stack or the card (netmap(4)).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{Burst, Cache, Mempool, Packet};
use ringpass_netmap::Flags;
use ringpass_netmap::layout::FORWARD;
use ringpass_port::TxQueue;

use super::counters::Tally;
use super::exchange::receive_special;
use super::frame::{ReadResult, Reader};
use super::ring_set::ValeRing;
use super::{RingSet, Shared};
use crate::BufferAccess;

/// Takes the frames that programs pass on from the Rx rings of a port.
pub(crate) struct Forwarded {
    cache: Cache,
    reader: Reader,
    shared: Arc<Shared>,
}

impl Forwarded {
    /// Creates it for a port's rings, whose frames are copied to packets of `pool`, or exchanged for them.
    pub(crate) fn new(shared: &Arc<Shared>, pool: &Mempool) -> Self {
        Self { cache: pool.cache(), reader: Reader::default(), shared: shared.clone() }
    }

    /// Sends the frames that programs have passed on since the last call; what the other side has no room for is dropped. `burst` is
    /// empty before and afterwards. Returns the number of frames.
    pub(crate) fn pass(&mut self, burst: &mut Burst, to: &mut dyn TxQueue) -> usize {
        let Self { cache, reader, shared } = self;
        let mut ring_set = shared.receiving().lock_datapath();
        let Some(RingSet { rings, buffer_access, .. }) = ring_set.as_mut() else { return 0 };
        let mut tally = Tally::default();
        for ring in rings.iter_mut().filter(|ring| passes_on(ring)) {
            let given = ring.poll_released(buffer_access, &shared.counters);
            let mut done = 0;
            while done < given {
                if !ring.kring.ring().slot(ring.kring.hwcur_plus(done)).flags.any(Flags::FORWARD) {
                    done += 1;
                    continue;
                }
                let Some((slots, packet)) = take((cache, reader), ring, (done, given), buffer_access, &mut tally)
                else {
                    break;
                };
                done += slots;
                tally.packets += usize::from(packet.is_some());
                packet.into_iter().for_each(|packet| burst.push(packet));
                if burst.room() == 0 {
                    to.tx_burst(burst);
                    burst.clear();
                }
            }
            // What is left is the rest of a frame that was not released whole, or there was no buffer for it.
            ring.skipping = false;
            ring.kring.advance_hwcur(given);
            ring.kring.publish();
        }
        to.tx_burst(burst);
        burst.clear();
        tally.packets
    }

    /// Requests a kick when programs release slots of rings that pass frames on.
    pub(crate) fn arm(&mut self) {
        if let Some(ring_set) = self.shared.receiving().lock().as_ref() {
            // The result is not needed: the caller polls once more before it blocks.
            ring_set.rings.iter().filter(|ring| passes_on(ring)).for_each(|ring| _ = ring.kring.arm(0));
        }
    }

    /// Requests no more kicks.
    pub(crate) fn disarm(&mut self) {
        if let Some(ring_set) = self.shared.receiving().lock().as_ref() {
            ring_set.rings.iter().filter(|ring| passes_on(ring)).for_each(|ring| ring.kring.disarm());
        }
    }
}

/// Returns whether a program has set `NR_FORWARD` in the ring's flags.
fn passes_on(ring: &ValeRing) -> bool {
    ring.kring.ring().header().flags.load(Relaxed) & FORWARD != 0
}

/// Takes the frame that begins at a released slot. Returns its number of slots, and the packet unless the frame was dropped; `None` if
/// it is not whole, or there is no buffer.
fn take(
    (cache, reader): (&mut Cache, &mut Reader),
    ring: &mut ValeRing,
    (first, given): (u32, u32),
    buffer_access: &BufferAccess,
    tally: &mut Tally,
) -> Option<(u32, Option<Packet>)> {
    match buffer_access {
        BufferAccess::Copied(bytes) => match reader.take(ring, first, given, bytes, cache) {
            ReadResult::Frame(packet, slots) => Some((slots, Some(packet))),
            ReadResult::Dropped { slots, .. } => Some((slots, None)),
            ReadResult::Retry => None,
        },
        BufferAccess::ZeroCopy(exchange) => receive_special(exchange, (cache, reader), ring, (first, given), tally),
    }
}
