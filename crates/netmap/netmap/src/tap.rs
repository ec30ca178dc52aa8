//! Copies of a pipe's frames for monitors. A sender writes them to a log in memory that it shares with the monitors; they follow
//! it, each at its own pace.
//!
//! A sender reads nothing that a monitor has written but the word by which it asks to be woken, so it never waits for one, and
//! wakes each at most once for each time that it has asked. What a monitor has not read in time is overwritten. Each entry carries
//! its number, from which a monitor sees whether it read the entry as a whole. Everything that is read is checked, and a
//! monitor reads each entry at most once, so whatever other processes write can only make it miss frames or show wrong ones.
//!
//! There is a log for each ring of each direction. The first bytes hold the words of all logs; the frames are [`Buffers`],
//! whose two reserved ones have those bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

use ringpass_memory::{Cells, Memory};

use crate::csb::{Csb, Locked};
use crate::layout::RESERVED_BUFFERS;
use crate::ring_lock::{Owned, SharedRing};
use crate::{Buffers, Flags, Notifier, Positions, Ring, Slot, SyncError};

/// Memory with the logs of a pipe.
pub struct Tap {
    words: Cells<AtomicU64>,
    frames: Buffers,
    /// Buffers of this process's rings, from which frames are copied, or to which.
    own: Buffers,
    /// Logs of each direction.
    rings: usize,
    /// Entries of each log, a power of two.
    entries: u64,
}

/// Largest number of bytes of a frame in an entry; the rest is cut off.
const MAX_FRAME: usize = 2048;
/// Bytes of an entry: a line of words, then the frame.
const STRIDE: usize = 64 + MAX_FRAME;
/// Words of an entry: its number, its time, and length and flags of the slot.
const WORDS: usize = STRIDE / 8;
/// Entries of all logs of a direction.
const ENTRIES: usize = 1024;
/// Word that counts the syncs of all senders, by which frames of both directions are put in order.
const CLOCK: usize = 0;
/// Word by which monitors ask to be woken: another value each time.
const CALL: usize = 1;

impl Tap {
    /// Largest number of rings of a pipe, in each direction.
    const MAX_RINGS: usize = 16;

    fn shape(rings: [u16; 2]) -> (usize, usize) {
        let rings = usize::from(rings[0].max(rings[1])).clamp(1, Self::MAX_RINGS);
        (rings, 1 << (ENTRIES / rings).ilog2())
    }

    /// Bytes for a pipe whose first end has these numbers of Tx rings and Rx rings.
    pub fn bytes(rings: [u16; 2]) -> usize {
        let (rings, entries) = Self::shape(rings);
        (RESERVED_BUFFERS as usize + 2 * rings * entries) * STRIDE
    }

    /// Returns the logs of such a pipe; `None` if they are not inside the memory. `own` are the buffers of this process's rings: of a
    /// sender's, whose frames are copied, or of a monitor's, to which they are.
    pub fn new(memory: &Memory, rings: [u16; 2], own: &Buffers) -> Option<Arc<Self>> {
        let bytes = Self::bytes(rings);
        let frames = Buffers::new(memory, 0, (bytes / STRIDE) as u32, STRIDE as u32)?;
        let (rings, entries) = Self::shape(rings);
        let (words, own) = (memory.cells(0, bytes / 8)?, own.clone());
        Some(Arc::new(Self { words, frames, own, rings, entries: entries as u64 }))
    }

    /// Number of the log of a ring, of the direction in which the first end sends, or the second.
    pub(crate) fn log(&self, first_sends: bool, ring: usize) -> Option<usize> {
        (ring < self.rings).then_some(if first_sends { ring } else { self.rings + ring })
    }

    /// Word with the number of entries that a log has had.
    fn count(&self, log: usize) -> &AtomicU64 {
        &self.words[8 * (1 + log)]
    }

    /// Place of an entry among the frames.
    fn place(&self, log: usize, number: u64) -> usize {
        RESERVED_BUFFERS as usize + log * self.entries as usize + (number & (self.entries - 1)) as usize
    }

    /// Value of the first word of an entry that is whole. While it is written, the value is one less.
    fn whole(number: u64) -> u64 {
        number.wrapping_mul(2).wrapping_add(2)
    }

    fn is_whole(&self, log: usize, number: u64) -> bool {
        self.words[WORDS * self.place(log, number)].load(Acquire) == Self::whole(number)
    }
}

const _: () = assert!(8 * 8 * (1 + 2 * Tap::MAX_RINGS) <= RESERVED_BUFFERS as usize * STRIDE);

/// A sender's side of a log.
pub(crate) struct TapWriter {
    tap: Arc<Tap>,
    log: usize,
    notify: Notifier,
    /// The last call that was answered.
    answered: AtomicU64,
}

impl TapWriter {
    /// Creates the side of a sender; `notify` wakes the monitors.
    pub(crate) fn new(tap: &Arc<Tap>, log: usize, notify: &Notifier) -> Self {
        Self { tap: tap.clone(), log, notify: notify.clone(), answered: AtomicU64::new(0) }
    }

    /// Writes the frames of these slots; of more than there are entries, the last ones.
    #[cold]
    #[inline(never)]
    ///
    /// `offsets` are the bits of the slots' pointers that are an offset.
    pub(crate) fn write(&self, slots: impl ExactSizeIterator<Item = Slot>, offsets: u64) {
        let Tap { words, frames, own, entries, .. } = &*self.tap;
        let all = slots.len() as u64;
        let kept = all.min(*entries);
        let clock = words[CLOCK].fetch_add(1, Relaxed);
        let first = self.tap.count(self.log).fetch_add(kept, Relaxed);
        for (n, slot) in (0..kept).zip(slots.skip((all - kept) as usize)) {
            let number = first.wrapping_add(n);
            let place = self.tap.place(self.log, number);
            let words = &words[WORDS * place..WORDS * (place + 1)];
            words[0].store(Tap::whole(number).wrapping_sub(1), Relaxed);
            // Who reads one of the new bytes also reads the new number.
            fence(Release);
            let len = usize::from(slot.len).min(MAX_FRAME);
            let frame = own.raw(slot.buffer, (slot.pointer & offsets) as usize, len);
            let is_valid = frame.is_some_and(|frame| frames.put(place as u32, 64, frame));
            words[1].store(clock, Relaxed);
            words[2].store(if is_valid { len as u64 } else { 0 } | u64::from(slot.flags.0) << 16, Relaxed);
            words[0].store(Tap::whole(number), Release);
        }
        fence(SeqCst);
        let call = words[CALL].load(Relaxed);
        if call != 0 && self.answered.swap(call, Relaxed) != call {
            (self.notify)();
        }
    }
}

/// What a monitor has read of a log.
pub(crate) struct Follower {
    log: usize,
    /// Number of the next entry, while this process fills the ring.
    next: AtomicU64,
    /// Flags of each slot with a frame.
    mark: Flags,
}

impl Follower {
    /// Follows a log from now on. Slots with its frames have these flags in addition to the frames' own.
    pub(crate) fn new(tap: &Tap, log: usize, mark: Flags) -> Self {
        Self { log, next: AtomicU64::new(tap.count(log).load(Acquire)), mark }
    }

    /// Returns the number of the next entry and its time, if there is one. Entries that are lost are passed over.
    fn peek(&self, tap: &Tap) -> Option<(u64, u64)> {
        let count = tap.count(self.log).load(Acquire);
        let mut next = self.next.load(Relaxed);
        if count.wrapping_sub(next) > tap.entries {
            next = count.wrapping_sub(tap.entries);
        }
        // At most as many as there are entries.
        while next != count {
            if tap.is_whole(self.log, next) {
                self.next.store(next, Relaxed);
                return Some((next, tap.words[WORDS * tap.place(self.log, next) + 1].load(Relaxed)));
            }
            // It is being written, unless it is lost: overwritten, or its sender has died.
            if !tap.is_whole(self.log, count.wrapping_sub(1)) {
                break;
            }
            next = next.wrapping_add(1);
        }
        self.next.store(next, Relaxed);
        None
    }

    /// Copies the frame of an entry to a buffer, and steps over the entry. Returns length and flags; `None` if it was overwritten
    /// meanwhile, or has no frame. The buffer must exist.
    fn take(&self, tap: &Tap, number: u64, buffer: u32) -> Option<(u16, Flags)> {
        self.next.store(number.wrapping_add(1), Relaxed);
        let place = tap.place(self.log, number);
        let word = tap.words[WORDS * place + 2].load(Relaxed);
        let len = usize::from(word as u16).min(MAX_FRAME).min(tap.own.size());
        let frame = tap.frames.raw(place as u32, 64, len);
        let is_copied = len > 0 && frame.is_some_and(|frame| tap.own.put(buffer, 0, frame));
        fence(Acquire);
        let is_whole = tap.words[WORDS * place].load(Relaxed) == Tap::whole(number);
        let flags = Flags((word >> 16) as u16 & Flags::MORE_FRAGMENTS.0) | self.mark;
        (is_copied && is_whole).then_some((len as u16, flags))
    }
}

/// A monitor's ring, which this process itself fills with the frames of one or two logs.
pub(crate) struct Watcher {
    ring: Ring,
    csb: Arc<Csb>,
    entry: usize,
    tap: Arc<Tap>,
    followers: Vec<Follower>,
    calls: AtomicU32,
}

impl Watcher {
    pub(crate) fn new(ring: Ring, (csb, entry): (&Arc<Csb>, usize), tap: &Arc<Tap>, followers: Vec<Follower>) -> Self {
        // Another process may have followed the logs before.
        for (follower, followed) in followers.iter().zip(csb.shared(entry).iter().flat_map(|shared| &shared.followed)) {
            let _ = followed.compare_exchange(0, follower.next.load(Relaxed).wrapping_add(1), Relaxed, Relaxed);
        }
        Self { ring, csb: csb.clone(), entry, tap: tap.clone(), followers, calls: AtomicU32::new(0) }
    }

    /// Takes the ring's lock.
    #[inline]
    pub(crate) fn lock(&self) -> Result<Option<Owned<'_>>, Locked> {
        self.csb.lock(self.entry)
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Fills the ring, and returns its positions.
    pub(crate) fn positions(&self) -> Result<Positions, SyncError> {
        self.fill(None)
    }

    pub(crate) fn passed(&self) -> u32 {
        self.csb.read_atok(self.entry).head
    }

    pub(crate) fn pass(&self, head: u32, cur: u32) -> Result<Positions, SyncError> {
        self.fill(Some((head, cur)))
    }

    fn stored(&self) -> Result<Positions, SyncError> {
        let (cur, tail) = self.csb.read_ktoa(self.entry);
        Positions::at(self.ring.slots(), cur, tail).ok_or(SyncError::Peer(cur, tail))
    }

    /// Takes back the slots before `head`, if it is given, with `cur`, and fills free ones.
    fn fill(&self, released: Option<(u32, u32)>) -> Result<Positions, SyncError> {
        let shared = self.csb.shared(self.entry).expect("a port's CSB");
        // Threads and processes that find another one filling leave the ring to that one.
        let Some(_filling) = shared.fill.acquire() else { return self.stored() };
        for (follower, followed) in self.followers.iter().zip(&shared.followed) {
            follower.next.store(followed.load(Relaxed).wrapping_sub(1), Relaxed);
        }
        self.fill_alone(released, shared)
    }

    fn fill_alone(&self, released: Option<(u32, u32)>, shared: &SharedRing) -> Result<Positions, SyncError> {
        let mut positions = self.stored()?;
        if let Some((head, cur)) = released {
            let given = positions.check(head, cur)?;
            self.csb.write_atok(self.entry, head, cur, 0);
            positions.advance_hwcur(given);
        }
        positions.advance_hwtail(self.copy(&positions));
        for (follower, followed) in self.followers.iter().zip(&shared.followed) {
            followed.store(follower.next.load(Relaxed).wrapping_add(1), Relaxed);
        }
        self.csb.write_ktoa(self.entry, positions.hwcur(), positions.hwtail());
        Ok(positions)
    }

    /// Copies frames to free slots. Returns how many slots are used.
    fn copy(&self, positions: &Positions) -> u32 {
        let room = positions.room();
        let mut used = 0;
        // A sender that is faster than this thread must not keep it.
        for _ in 0..2 * self.tap.entries {
            if used == room {
                break;
            }
            let next = self.followers.iter().filter_map(|follower| Some((follower, follower.peek(&self.tap)?)));
            let Some((follower, (number, _))) = next.min_by_key(|(_, (_, clock))| *clock) else { break };
            let position = positions.after(positions.hwtail(), used);
            let Slot { buffer, .. } = self.ring.slot(position);
            if !self.tap.own.holds(buffer, 0) {
                self.ring.set(position, Slot::default());
                used += 1;
            } else if let Some((len, flags)) = follower.take(&self.tap, number, buffer) {
                self.ring.set_frame(position, buffer, len, flags);
                used += 1;
            }
        }
        used
    }

    /// Asks the senders to wake this process. There is nothing to withdraw: each answers once.
    pub(crate) fn set_need_kick(&self, call: bool) {
        if call {
            // Calls of other monitors may get lost in this one, which wakes them as well.
            let number = u64::from(self.calls.fetch_add(1, Relaxed)) << 32;
            let call = self.tap.words[CALL].load(Relaxed).wrapping_add(number).wrapping_add(1);
            self.tap.words[CALL].store(call.max(1), Relaxed);
            fence(SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{DmaRegion, RegionConfig};

    use super::*;

    #[test]
    fn logs_lie_in_their_memory() {
        let memory = |bytes| Memory::from(DmaRegion::new(bytes, &RegionConfig::default()).unwrap());
        let own = Buffers::new(&memory(4096), 0, 64, 64).expect("buffers");
        assert!(Tap::new(&memory(Tap::bytes([1; 2]) - 4096), [1; 2], &own).is_none());
        for rings in [[1, 1], [3, 2], [1, 16], [16, 16], [u16::MAX; 2], [0, 0]] {
            assert!(Tap::bytes(rings) < 5 << 20);
            let tap = Tap::new(&memory(Tap::bytes(rings)), rings, &own).expect("it fits");
            assert!(tap.log(true, 16).is_none() && tap.log(false, 0).is_some());
            let last = (0..16).filter_map(|ring| tap.log(false, ring)).max().unwrap();
            let _ = Follower::new(&tap, last, Flags::default());
        }
    }
}
