//! Zero-copy transfer of frames between rings and packets: a slot's buffer is exchanged for that of a packet.
//!
//! The buffer that a slot names is taken only if it is a program's ([`SharedPool::claim`]). A slot that names
//! any other buffer, for instance one that another slot has named before, is cleared and counted.

use ringpass_memory::{Burst, Cache, MAGAZINE, Packet};
use ringpass_netmap::run::{MIN_FRAME_LEN, SPECIAL};
use ringpass_netmap::{Claim, Flags, Ring, SharedPool, Slot};

use super::counters::Tally;
use super::frame::{FrameScan, Reader, slots};
use super::ring_set::ValeRing;
use super::tx::Sending;

/// Receives frames that a program sends. Their slots get other buffers and may be returned at once. Returns how
/// many slots are done. Frames wait in the ring if the pool is empty or their last slot is missing.
#[inline]
pub(super) fn receive(
    exchange: &SharedPool,
    (cache, reader): (&mut Cache, &mut Reader),
    ring: &mut ValeRing,
    given: u32,
    burst: &mut Burst,
    tally: &mut Tally,
) -> u32 {
    let mut done = if ring.skipping { ring.skip(0, given) } else { 0 };
    while done < given && burst.room() > 0 {
        let (before, most) = (done, ((given - done) as usize).min(burst.room()).min(MAGAZINE));
        // Where frames have offsets, none is plain.
        let most = if ring.kring.offsets().any() { 0 } else { most };
        receive_run(exchange, cache, ring, (&mut done, most), burst, tally);
        if done == before {
            // The frame is not a plain one, or there was no buffer for it.
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

/// Receives frames in one slot each, up to `most` frames, the first that is not plain, or an empty pool.
#[inline]
fn receive_run(
    exchange: &SharedPool,
    cache: &mut Cache,
    ring: &ValeRing,
    (done, most): (&mut u32, usize),
    burst: &mut Burst,
    tally: &mut Tally,
) {
    let span = cache.pool().buffer_size() - MIN_FRAME_LEN;
    let mut packets = cache.packets(most);
    let kring = &ring.kring;
    let ring = kring.ring();
    for _ in 0..most {
        let position = kring.hwcur_plus(*done);
        let slot = ring.slot(position);
        let len = usize::from(slot.len);
        if slot.flags.any(SPECIAL) || len.wrapping_sub(MIN_FRAME_LEN) > span {
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
            clear_slot(ring, position, tally);
            tally.drops += 1;
        }
        *done += 1;
    }
}

/// Receives a frame that is not plain. Returns its number of slots, and the packet unless the frame was
/// dropped; `None` if it has to wait.
#[cold]
#[inline(never)]
pub(super) fn receive_special(
    exchange: &SharedPool,
    (cache, reader): (&mut Cache, &mut Reader),
    ring: &mut ValeRing,
    (first, given): (u32, u32),
    tally: &mut Tally,
) -> Option<(u32, Option<Packet>)> {
    let longest = cache.pool().buffer_size();
    let holds = |buffer, len| (buffer as usize) < exchange.buffers() && len <= longest;
    match reader.find(ring, (first, given), longest, holds) {
        FrameScan::Retry => None,
        FrameScan::Dropped { slots, bad } => {
            (tally.drops, tally.bad_slots) = (tally.drops + 1, tally.bad_slots + bad);
            Some((slots, None))
        }
        FrameScan::Frame { total, slots, known } => {
            // One packet for the frame, and one whose buffer is exchanged for each fragment in turn.
            let mut packets = cache.packets(2);
            let (mut frame, mut piece) = (packets.next()?, packets.next()?);
            frame.set_len(0);
            frame.add_flags(known);
            let mut whole = true;
            for (n, fragment) in (first..).zip(&reader.fragments) {
                let (position, slots) = (ring.kring.hwcur_plus(n), ring.kring.ring());
                if let Some(claim) = exchange.claim(fragment.buffer) {
                    let other = claim.swap(&mut piece);
                    slots.set_frame(position, other, fragment.len, Flags::BUFFER_CHANGED);
                    piece.set_len(fragment.end());
                    let filled = frame.len();
                    frame.set_len(filled + usize::from(fragment.len));
                    frame.write_raw(filled, piece.bytes().range(fragment.offset.into()..fragment.end()));
                } else {
                    clear_slot(slots, position, tally);
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

/// Removes the buffer of a slot that has named a buffer which is not a program's.
#[cold]
fn clear_slot(ring: &Ring, position: u32, tally: &mut Tally) {
    ring.set(position, Slot::default());
    tally.bad_slots += 1;
}

impl Sending<'_> {
    /// Sends packets to a program, as many as there is room for: slots get the packets' buffers, and the
    /// packets get those of the slots. Returns how many packets are done.
    #[inline]
    pub(super) fn exchange(&mut self, ring: &mut ValeRing, exchange: &SharedPool, packets: &mut [Packet]) -> usize {
        if ring.kring.offsets().any() {
            return self.copy_behind_offsets(ring, exchange, packets);
        }
        self.open(ring);
        let room = ring.room();
        let flags = slots(1) | Flags::BUFFER_CHANGED | self.mark;
        let (mut done, mut used) = (0, 0);
        for packet in packets {
            let len = packet.len();
            if !exchange.can_swap(packet) || len < MIN_FRAME_LEN {
                self.tally.drops += 1;
            } else if let Some((claim, position)) = self.next(ring, exchange, &mut used, room) {
                self.monitors.mirror(ring.number, std::slice::from_ref(packet));
                let buffer = claim.swap(packet);
                // The cast is lossless, because a buffer is shorter than 64 KiB.
                ring.kring.ring().set_frame(position, buffer, len as u16, flags);
                self.tally.bytes += len;
            } else {
                break;
            }
            done += 1;
        }
        ring.kring.advance_hwtail(used);
        self.close(ring);
        done
    }

    /// Sends packets to a program whose slots have offsets: a copy of each, in a buffer of its own, behind the slot's offset. Packets
    /// that do not fit there are dropped. Returns how many packets are done.
    #[cold]
    fn copy_behind_offsets(&mut self, ring: &mut ValeRing, exchange: &SharedPool, packets: &[Packet]) -> usize {
        self.open(ring);
        let (room, size) = (ring.room(), exchange.pool().buffer_size());
        let mut cache = exchange.pool().cache();
        let (mut done, mut used) = (0, 0);
        for packet in packets {
            let len = packet.len();
            if !exchange.can_swap(packet) || len < MIN_FRAME_LEN {
                self.tally.drops += 1;
                done += 1;
                continue;
            }
            let Some(mut copy) = cache.packets(1).next() else { break };
            let Some((claim, position)) = self.next(ring, exchange, &mut used, room) else { break };
            let offset = usize::from(ring.kring.offsets().at(ring.kring.ring().slot(position).pointer));
            if offset + len > size {
                // The slot stays the server's.
                used -= 1;
                drop(claim);
                self.tally.drops += 1;
                done += 1;
                continue;
            }
            self.monitors.mirror(ring.number, std::slice::from_ref(packet));
            copy.set_len(offset + len);
            copy.write_raw(offset, packet.bytes());
            let buffer = claim.swap(&mut copy);
            // The cast is lossless, because a buffer is shorter than 64 KiB.
            let flags = slots(1) | Flags::BUFFER_CHANGED | self.mark;
            ring.kring.ring().set_frame(position, buffer, len as u16, flags);
            self.tally.bytes += len;
            done += 1;
        }
        ring.kring.advance_hwtail(used);
        self.close(ring);
        done
    }

    /// Claims the buffer of the next slot that names a program's buffer. Other slots are returned empty.
    #[inline]
    fn next<'a>(
        &mut self,
        ring: &ValeRing,
        exchange: &'a SharedPool,
        used: &mut u32,
        room: u32,
    ) -> Option<(Claim<'a>, u32)> {
        while *used < room {
            let position = ring.kring.hwtail_plus(*used);
            *used += 1;
            if let Some(claim) = exchange.claim(ring.kring.ring().slot(position).buffer) {
                return Some((claim, position));
            }
            clear_slot(ring.kring.ring(), position, &mut self.tally);
        }
        None
    }
}
