//! Frames that pass between rings and packets without a copy: the buffer of a slot is exchanged for that of a packet.
//!
//! What a slot names is taken only if it is a program's ([`Exchange::claim`]). A slot that names anything else, such as a buffer
//! that another slot has named before, is emptied and counted.

use ringpass_memory::{Burst, Cache, Claim, Exchange, MAGAZINE, Packet};

use super::SHORTEST;
use super::counters::Tally;
use super::frame::{Found, Reader, SPECIAL, slots};
use super::lane::LaneRing;
use super::tx::Sending;
use crate::{Flags, Ring, Slot};

/// Takes frames that a program sends; their slots get other buffers and may be given back at once. Returns how many slots are
/// done with. With the pool dry, or without their last slot, frames wait in the ring.
#[inline]
pub(super) fn receive(
    exchange: &Exchange,
    (cache, reader): (&mut Cache, &mut Reader),
    ring: &mut LaneRing,
    given: u32,
    burst: &mut Burst,
    tally: &mut Tally,
) -> u32 {
    let mut done = if ring.skipping { ring.skip(0, given) } else { 0 };
    while done < given && burst.room() > 0 {
        let (before, most) = (done, ((given - done) as usize).min(burst.room()).min(MAGAZINE));
        receive_run(exchange, cache, ring, (&mut done, most), burst, tally);
        if done == before {
            // Not a plain one, or there was no buffer for it.
            match receive_special(exchange, (cache, reader), ring, (done, given), tally) {
                Some((slots, packet)) => {
                    done += slots;
                    packet.into_iter().for_each(|packet| burst.push(packet));
                }
                None => break,
            }
        }
    }
    done
}

/// Frames in one slot each, up to `most` or the first that is not such, or until the pool is dry.
#[inline]
fn receive_run(
    exchange: &Exchange,
    cache: &mut Cache,
    ring: &LaneRing,
    (done, most): (&mut u32, usize),
    burst: &mut Burst,
    tally: &mut Tally,
) {
    let span = cache.pool().buffer_size() - SHORTEST;
    let (mut packets, ring, served) = (cache.packets(most), ring.served.ring(), &ring.served);
    for _ in 0..most {
        let position = served.given(*done);
        let slot = ring.slot(position);
        let len = usize::from(slot.len);
        if slot.flags.any(SPECIAL) || len.wrapping_sub(SHORTEST) > span {
            break;
        }
        if let Some(claim) = exchange.claim(slot.buffer) {
            let Some(mut packet) = packets.next() else { break };
            let other = claim.swap(&mut packet);
            packet.set_len(len);
            ring.set_frame(position, other, slot.len, Flags::BUFFER_CHANGED);
            tally.bytes += len;
            burst.push(packet);
        } else {
            empty(ring, position, tally);
            tally.drops += 1;
        }
        *done += 1;
    }
}

/// A frame that is not plain: in how many slots it is, and the packet, if it may pass. `None`: later.
#[cold]
#[inline(never)]
fn receive_special(
    exchange: &Exchange,
    (cache, reader): (&mut Cache, &mut Reader),
    ring: &mut LaneRing,
    (first, given): (u32, u32),
    tally: &mut Tally,
) -> Option<(u32, Option<Packet>)> {
    let longest = cache.pool().buffer_size();
    let holds = |buffer, len| (buffer as usize) < exchange.buffers() && len <= longest;
    match reader.find(ring, (first, given), longest, holds) {
        Found::Later => None,
        Found::Nothing { slots, bad } => {
            (tally.drops, tally.bad_slots) = (tally.drops + 1, tally.bad_slots + bad);
            Some((slots, None))
        }
        Found::Frame { total, slots, known } => {
            // One for the frame, and one that each piece is exchanged for in turn.
            let mut packets = cache.packets(2);
            let (mut frame, mut piece) = (packets.next()?, packets.next()?);
            frame.set_len(0);
            frame.add_flags(known);
            let mut whole = true;
            for (n, &(buffer, len)) in (first..).zip(&reader.pieces) {
                let (position, slots) = (ring.served.given(n), ring.served.ring());
                if let Some(claim) = exchange.claim(buffer) {
                    let other = claim.swap(&mut piece);
                    slots.set_frame(position, other, len, Flags::BUFFER_CHANGED);
                    piece.set_len(len.into());
                    let filled = frame.len();
                    frame.set_len(filled + piece.len());
                    frame.write_raw(filled, piece.bytes());
                } else {
                    empty(slots, position, tally);
                    whole = false;
                }
            }
            debug_assert!(!whole || frame.len() == total);
            tally.bytes += if whole { total } else { 0 };
            tally.drops += usize::from(!whole);
            Some((slots, whole.then_some(frame)))
        }
    }
}

/// A slot has named what is not a program's: it has no buffer any more.
#[cold]
fn empty(ring: &Ring, position: u32, tally: &mut Tally) {
    ring.set(position, Slot::default());
    tally.bad_slots += 1;
}

impl Sending<'_> {
    /// Gives packets to a program, as many as there is room for: their buffers become those of slots, whose own become the
    /// packets'. Returns how many packets are done with.
    #[inline]
    pub(super) fn exchange(&mut self, ring: &mut LaneRing, exchange: &Exchange, packets: &mut [Packet]) -> usize {
        self.open(ring);
        let room = ring.room();
        let (mut done, mut used) = (0, 0);
        for packet in packets {
            let len = packet.len();
            if !exchange.fits(packet) || len < SHORTEST {
                self.tally.drops += 1;
            } else if let Some((claim, position)) = self.next(ring, exchange, &mut used, room) {
                self.monitors.see(std::slice::from_ref(packet));
                let buffer = claim.swap(packet);
                // As a buffer is shorter than 64 KiB.
                ring.served.ring().set_frame(position, buffer, len as u16, slots(1) | Flags::BUFFER_CHANGED);
                self.tally.bytes += len;
            } else {
                break;
            }
            done += 1;
        }
        ring.served.give(used);
        self.close(ring);
        done
    }

    /// The next slot with a buffer that is a program's. Others are given back empty.
    #[inline]
    fn next<'a>(
        &mut self,
        ring: &LaneRing,
        exchange: &'a Exchange,
        used: &mut u32,
        room: u32,
    ) -> Option<(Claim<'a>, u32)> {
        while *used < room {
            let position = ring.served.free(*used);
            *used += 1;
            if let Some(claim) = exchange.claim(ring.served.ring().slot(position).buffer) {
                return Some((claim, position));
            }
            empty(ring.served.ring(), position, &mut self.tally);
        }
        None
    }
}
