//! Frames that are not plain: in several slots or buffers, not to be learned from, faulty, or in slots that say what cannot be.

use std::convert::Infallible;

use ringpass_memory::{Cache, Flags as PacketFlags, Packet};

use super::lane::LaneRing;
use super::{LONGEST, SHORTEST};
use crate::pieces;
use crate::{Buffers, Flags, Slot};

/// What needs a closer look.
pub(crate) const SPECIAL: Flags = Flags(Flags::MORE_FRAGMENTS.0 | Flags::INDIRECT.0 | Flags::NO_LEARN.0);

/// Slots that a frame may be spread over: the count is told in 8 bits.
const MOST_SLOTS: u32 = 255;

/// What was found in slots.
pub(crate) enum Found {
    /// A frame of so many bytes, in so many slots, and what they say of it.
    Frame { total: usize, slots: u32, known: PacketFlags },
    /// None that may pass, in so many slots, of which so many are bad.
    Nothing { slots: u32, bad: usize },
    /// The rest is not there yet.
    Later,
}

/// What was taken out of slots.
pub(crate) enum Taken {
    /// A frame, in so many slots.
    Frame(Packet, u32),
    /// None that may pass, in so many slots, of which so many are bad.
    Nothing { slots: u32, bad: usize },
    /// The rest is not there yet, or there are too few buffers.
    Later,
}

/// Reads such frames.
#[derive(Default)]
pub(crate) struct Reader {
    /// Buffers and lengths of a frame's slots.
    pub(crate) pieces: Vec<(u32, u16)>,
}

impl Reader {
    /// Copies the frame that begins with one of the slots that the program has given up.
    #[cold]
    #[inline(never)]
    pub(crate) fn take(
        &mut self,
        ring: &mut LaneRing,
        first: u32,
        given: u32,
        bytes: &Buffers,
        cache: &mut Cache,
    ) -> Taken {
        match self.find(ring, (first, given), LONGEST, |buffer, len| bytes.holds(buffer, len)) {
            Found::Frame { total, slots, known } => {
                let Some(mut packet) = pieces::read(&self.pieces, total, bytes, cache) else { return Taken::Later };
                packet.add_flags(known);
                Taken::Frame(packet, slots)
            }
            Found::Nothing { slots, bad } => Taken::Nothing { slots, bad },
            Found::Later => Taken::Later,
        }
    }

    /// Looks for the frame that begins with one of the slots that the program has given up, of `longest` bytes at most, in
    /// buffers that there are.
    pub(crate) fn find(
        &mut self,
        ring: &mut LaneRing,
        (first, given): (u32, u32),
        longest: usize,
        holds: impl Fn(u32, usize) -> bool,
    ) -> Found {
        self.pieces.clear();
        let (mut total, mut bad, mut slots, mut known) = (0, 0, 0, PacketFlags::default());
        loop {
            if first + slots == given {
                // A ring that is full of one frame will not have the rest of it.
                if slots + 1 < ring.served.ring().slots() {
                    return Found::Later;
                }
                break;
            }
            let slot = ring.served.ring().slot(ring.served.given(first + slots));
            bad += usize::from(slot.flags.any(Flags::INDIRECT) || !holds(slot.buffer, slot.len.into()));
            if slot.flags.any(Flags::NO_LEARN) {
                known = PacketFlags::NO_LEARN;
            }
            total += usize::from(slot.len);
            slots += 1;
            self.pieces.push((slot.buffer, slot.len));
            if !slot.flags.any(Flags::MORE_FRAGMENTS) {
                if bad > 0 || !(SHORTEST..=longest).contains(&total) {
                    return Found::Nothing { slots, bad };
                }
                return Found::Frame { total, slots, known };
            }
            if total > longest || slots == MOST_SLOTS {
                break;
            }
        }
        let more = ring.skip(first + slots, given) - (first + slots);
        Found::Nothing { slots: slots + more, bad }
    }
}

/// What became of a frame to a program.
pub(crate) enum Given {
    /// It is in the ring.
    Frame,
    /// There are too few slots just now.
    Later,
    /// No program gets it.
    Never,
}

/// Writes such frames.
#[derive(Default)]
pub(crate) struct Writer {
    /// Buffers of the slots.
    buffers: Vec<u32>,
}

impl Writer {
    /// Copies a frame to slots from `used` on, of `room` that are free, and moves `used` behind them. Slots without a buffer
    /// are given back empty, with those between them that do not suffice, and counted in `bad`.
    #[cold]
    #[inline(never)]
    pub(crate) fn give(
        &mut self,
        ring: &LaneRing,
        (used, room): (&mut u32, u32),
        bytes: &Buffers,
        packet: &Packet,
        bad: &mut usize,
    ) -> Given {
        let (total, served) = (packet.total_len(), &ring.served);
        let need = total.div_ceil(bytes.size()) as u32;
        if !(SHORTEST..=LONGEST).contains(&total) || need > MOST_SLOTS.min(served.ring().slots() - 1) {
            return Given::Never;
        }
        self.buffers.clear();
        while self.buffers.len() < need as usize {
            let next = *used + self.buffers.len() as u32;
            if next == room {
                return Given::Later;
            }
            let buffer = served.ring().slot(served.free(next)).buffer;
            if bytes.holds(buffer, 0) {
                self.buffers.push(buffer);
            } else {
                (*used..=next).for_each(|n| served.ring().set(served.free(n), self.empty(n - *used)));
                self.buffers.clear();
                (*used, *bad) = (next + 1, *bad + 1);
            }
        }
        let Ok(()) = pieces::write::<Infallible>(packet, bytes, |n, len, flags| {
            let (position, buffer) = (served.free(*used + n), self.buffers[n as usize]);
            // A buffer has 65,536 bytes at most: the one frame of that length has no slot of that length.
            served.ring().set_frame(position, buffer, len as u16, slots(need as usize) | flags);
            Ok(buffer)
        });
        *used += need;
        Given::Frame
    }

    /// A slot without a frame, with the buffer that it had, if any.
    fn empty(&self, n: u32) -> Slot {
        Slot { buffer: self.buffers.get(n as usize).copied().unwrap_or(0), ..Slot::default() }
    }
}

/// How many slots a frame takes, as each of them says.
pub(crate) const fn slots(count: usize) -> Flags {
    Flags((count as u16) << 8)
}

impl LaneRing {
    /// The next slot behind the rest of a frame that was dropped; the rest of that rest is skipped later.
    pub(crate) fn skip(&mut self, from: u32, given: u32) -> u32 {
        let slot = |n: &u32| self.served.ring().slot(self.served.given(*n));
        let last = (from..given).find(|n| !slot(n).flags.any(Flags::MORE_FRAGMENTS));
        self.skipping = last.is_none();
        last.map_or(given, |last| last + 1)
    }
}
