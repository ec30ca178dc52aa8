//! Frames off the fast path: in several slots or buffers, not to be learned from, faulty, or in invalid slots.

use std::convert::Infallible;

use ringpass_memory::{Cache, Flags as PacketFlags, Packet};
use ringpass_netmap::fragments::{self, Fragment};
use ringpass_netmap::run::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use ringpass_netmap::{Buffers, Flags, Kring};

use super::ring_set::ValeRing;

/// Largest number of slots of a frame: slots carry that number in 8 bits.
const MAX_FRAGMENTS: u32 = 255;

/// Result of scanning slots.
pub(crate) enum FrameScan {
    /// A frame of `total` bytes in `slots` slots, and the packet flags that they imply.
    Frame { total: usize, slots: u32, known: PacketFlags },
    /// `slots` slots without a valid frame; `bad` of them are invalid.
    Dropped { slots: u32, bad: usize },
    /// The rest of the frame has not arrived.
    Retry,
}

/// Result of reading slots.
pub(crate) enum ReadResult {
    /// A frame, and its number of slots.
    Frame(Packet, u32),
    /// `slots` slots without a valid frame; `bad` of them are invalid.
    Dropped { slots: u32, bad: usize },
    /// The rest of the frame has not arrived, or the pool has too few buffers.
    Retry,
}

/// Reads frames off the fast path.
#[derive(Default)]
pub(crate) struct Reader {
    /// Bytes of the frame's slots.
    pub(crate) fragments: Vec<Fragment>,
}

impl Reader {
    /// Copies the frame that begins at released slot `first`.
    #[cold]
    #[inline(never)]
    pub(crate) fn take(
        &mut self,
        ring: &mut ValeRing,
        first: u32,
        given: u32,
        bytes: &Buffers,
        cache: &mut Cache,
    ) -> ReadResult {
        match self.find(ring, (first, given), MAX_FRAME_LEN, |buffer, len| bytes.holds(buffer, len)) {
            FrameScan::Frame { total, slots, known } => {
                let Some(mut packet) = fragments::read(&self.fragments, total, bytes, cache) else {
                    return ReadResult::Retry;
                };
                packet.add_flags(known);
                ReadResult::Frame(packet, slots)
            }
            FrameScan::Dropped { slots, bad } => ReadResult::Dropped { slots, bad },
            FrameScan::Retry => ReadResult::Retry,
        }
    }

    /// Scans for the frame that begins at released slot `first`. It may have up to `longest` bytes, and `holds`
    /// decides which buffers exist and are large enough.
    pub(crate) fn find(
        &mut self,
        ring: &mut ValeRing,
        (first, given): (u32, u32),
        longest: usize,
        holds: impl Fn(u32, usize) -> bool,
    ) -> FrameScan {
        self.fragments.clear();
        let mut total = 0;
        let mut bad = 0;
        let mut slots = 0;
        let mut known = PacketFlags::default();
        loop {
            if first + slots == given {
                // A ring that is full of one frame will not get the rest of it.
                if slots + 1 < ring.kring.ring().slots() {
                    return FrameScan::Retry;
                }
                break;
            }
            let slot = ring.kring.ring().slot(ring.kring.hwcur_plus(first + slots));
            let offset = ring.kring.offsets().at(slot.pointer);
            let fragment = Fragment { buffer: slot.buffer, offset, len: slot.len };
            bad += usize::from(slot.flags.any(Flags::INDIRECT) || !holds(slot.buffer, fragment.end()));
            if slot.flags.any(Flags::NO_LEARN) {
                known = PacketFlags::NO_LEARN;
            }
            total += usize::from(slot.len);
            slots += 1;
            self.fragments.push(fragment);
            if !slot.flags.any(Flags::MORE_FRAGMENTS) {
                if bad > 0 || !(MIN_FRAME_LEN..=longest).contains(&total) {
                    return FrameScan::Dropped { slots, bad };
                }
                return FrameScan::Frame { total, slots, known };
            }
            if total > longest || slots == MAX_FRAGMENTS {
                break;
            }
        }
        let more = ring.skip(first + slots, given) - (first + slots);
        FrameScan::Dropped { slots: slots + more, bad }
    }
}

/// Result of writing a frame for a program.
pub(crate) enum WriteResult {
    /// It is in the ring.
    Frame,
    /// There are too few free slots at the moment.
    Retry,
    /// It cannot be sent to any program.
    Rejected,
}

/// A frame that is written for a program.
pub(crate) struct Frame<'a> {
    /// Bytes in front of it.
    pub(crate) header: &'a [u8],
    pub(crate) packet: &'a Packet,
    /// Flags of its slots.
    pub(crate) mark: Flags,
}

/// Writes frames off the fast path.
#[derive(Default)]
pub(crate) struct Writer {
    /// Parts of buffers in which the frame has room.
    rooms: Vec<Fragment>,
}

impl Writer {
    /// Copies a frame to free slots from `used` on, of `room` in all, and advances `used`. Slots without a valid buffer are counted
    /// in `bad`, and returned empty together with the slots before them that do not suffice for the frame.
    #[cold]
    #[inline(never)]
    pub(crate) fn give(
        &mut self,
        ring: &ValeRing,
        (used, room): (&mut u32, u32),
        bytes: &Buffers,
        Frame { header, packet, mark }: Frame<'_>,
        bad: &mut usize,
    ) -> WriteResult {
        let (total, kring) = (header.len() + packet.total_len(), &ring.kring);
        let most = MAX_FRAGMENTS.min(kring.ring().slots() - 1);
        // Where offsets leave less of each buffer, a frame may turn out to be too long only below.
        if !(MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(&total) || total.div_ceil(bytes.size()) as u32 > most {
            return WriteResult::Rejected;
        }
        self.rooms.clear();
        let mut left = total;
        while left > 0 {
            let found = self.rooms.len() as u32;
            if found == most {
                return WriteResult::Rejected;
            }
            let next = *used + found;
            if next == room {
                return WriteResult::Retry;
            }
            let slot = kring.ring().slot(kring.hwtail_plus(next));
            let offset = kring.offsets().at(slot.pointer);
            // Behind its offset a slot has room for a byte at least.
            if bytes.holds(slot.buffer, usize::from(offset) + 1) {
                // The cast is lossless: `Buffers::size` limits each fragment to 65,535 bytes, even in a buffer of 65,536.
                let len = left.min(bytes.size() - usize::from(offset)) as u16;
                self.rooms.push(Fragment { buffer: slot.buffer, offset, len });
                left -= usize::from(len);
            } else {
                (*used..=next).for_each(|n| self.clear(kring, n, (n - *used) as usize));
                self.rooms.clear();
                (left, *used, *bad) = (total, next + 1, *bad + 1);
            }
        }
        let need = self.rooms.len();
        let Ok(()) = fragments::write::<Infallible>(header, packet, bytes, |n, left| {
            let (position, fragment) = (kring.hwtail_plus(*used + n), self.rooms[n as usize]);
            let flags = slots(need) | fragments::flags(fragment.len.into(), left) | mark;
            kring.ring().set_frame(position, fragment.buffer, fragment.len, flags);
            Ok(fragment)
        });
        *used += need as u32;
        WriteResult::Frame
    }

    /// Empties a free slot, which keeps the `found`-th buffer found, if there is one.
    fn clear(&self, kring: &Kring, free: u32, found: usize) {
        let buffer = self.rooms.get(found).map_or(0, |room| room.buffer);
        kring.ring().set_frame(kring.hwtail_plus(free), buffer, 0, Flags::default());
    }
}

/// Flags that state the number of slots of a frame.
pub(crate) const fn slots(count: usize) -> Flags {
    Flags((count as u16) << 8)
}

impl ValeRing {
    /// Skips the rest of a dropped frame. Returns the next slot after it; a part that has not arrived yet is
    /// skipped later.
    pub(crate) fn skip(&mut self, from: u32, given: u32) -> u32 {
        let slot = |n: &u32| self.kring.ring().slot(self.kring.hwcur_plus(*n));
        let last = (from..given).find(|n| !slot(n).flags.any(Flags::MORE_FRAGMENTS));
        self.skipping = last.is_none();
        last.map_or(given, |last| last + 1)
    }
}
