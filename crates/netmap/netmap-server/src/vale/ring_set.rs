//! The rings of one direction of a port, shared by the switch's queue and the control side.

use ringpass_ipc::EventNotifier;
use ringpass_netmap::{Kring, Slot, SyncError};
use ringpass_port::YieldingMutex;

use super::counters::Counters;
use crate::BufferAccess;

/// A set of rings behind its lock; `None` when the port has ended.
pub(crate) type SharedRingSet = YieldingMutex<Option<RingSet>>;

/// Rings of one direction, with their buffers and the programs to be woken.
pub(crate) struct RingSet {
    pub(crate) rings: Vec<ValeRing>,
    pub(crate) buffer_access: BufferAccess,
    pub(crate) subscribers: Vec<Subscriber>,
}

/// A program to be woken.
pub(crate) struct Subscriber {
    pub(crate) number: u64,
    /// Bit N: wake it for the ring with entry N of the CSB.
    pub(crate) entries: u64,
    pub(crate) call: EventNotifier,
}

/// A ring, and how its program has behaved.
pub(crate) struct ValeRing {
    /// Number of the ring in its set.
    pub(crate) number: usize,
    pub(crate) kring: Kring,
    /// The next slots are the rest of a frame that was dropped.
    pub(crate) skipping: bool,
    /// How often the ring may still be reset. With 0 left, it is not served any more.
    resets_left: u32,
}

/// Resets that a ring is allowed. Programs that err by mistake get an error from their own side before the
/// server sees anything.
const MAX_RESETS: u32 = 100;

impl RingSet {
    pub(crate) fn new(krings: Vec<Kring>, buffer_access: BufferAccess) -> Self {
        let ring = |(number, kring)| ValeRing { number, kring, skipping: false, resets_left: MAX_RESETS };
        let rings = krings.into_iter().enumerate().map(ring).collect();
        Self { rings, buffer_access, subscribers: Vec::new() }
    }

    /// Wakes the programs that wait for a ring with one of these entries.
    #[cold]
    pub(crate) fn call(&self, entries: u64) {
        self.subscribers
            .iter()
            .filter(|subscriber| subscriber.entries & entries != 0)
            .for_each(|one| one.call.notify());
    }
}

impl ValeRing {
    /// Number of slots that the program has released; 0 if the ring is not served any more.
    #[inline]
    pub(crate) fn poll_released(&mut self, buffer_access: &BufferAccess, counters: &Counters) -> u32 {
        match self.kring.poll_released() {
            Ok(given) if self.resets_left > 0 => given,
            Ok(_) => 0,
            Err(invalid_positions) => {
                self.reset(buffer_access, counters, invalid_positions);
                0
            }
        }
    }

    /// Number of slots that can take frames; 0 if the ring is not served any more.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        if self.resets_left > 0 { self.kring.room() } else { 0 }
    }

    /// Resets both sides to the server's positions. Invalid slots lose their buffer, or their length if only
    /// that is invalid.
    #[cold]
    fn reset(&mut self, buffer_access: &BufferAccess, counters: &Counters, why: SyncError) {
        let Some(resets_left) = self.resets_left.checked_sub(1) else { return };
        self.resets_left = resets_left;
        counters.reset(|| format!("ring {}: {why}", self.kring.entry()));
        let ring = self.kring.ring();
        for position in 0..ring.slots() {
            let slot = ring.slot(position);
            if !buffer_access.holds(slot.buffer, 0) {
                ring.set(position, Slot::default());
            } else if usize::from(slot.len) > buffer_access.size() {
                ring.set(position, Slot { len: 0, ..slot });
            }
        }
        self.skipping = false;
        self.kring.restart();
    }

    /// Publishes the positions. Returns the bit of the ring's entry if the program wants to be woken, else 0.
    #[inline]
    pub(crate) fn publish(&self) -> u64 {
        u64::from(self.kring.publish()) << (self.kring.entry() & 63)
    }
}
