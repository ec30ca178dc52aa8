//! Frames that the sending half of a tunnel's queue pair gives back to its receiving half.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ringpass_memory::{Burst, MAX_BATCH, Packet};

/// Answers that wait to be received. Both halves belong to one worker, so the lock is never contended.
pub(super) struct Replies {
    /// Set if there are some, so that a poll without any takes no lock.
    waiting: AtomicBool,
    packets: Mutex<Burst>,
}

impl Replies {
    pub(super) fn new() -> Self {
        Self { waiting: AtomicBool::new(false), packets: Mutex::new(Burst::new(MAX_BATCH)) }
    }

    /// Adds an answer; drops it if there is no room, as whoever asked will ask again.
    pub(super) fn add(&self, packet: Packet) {
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        if packets.room() > 0 {
            packets.push(packet);
            self.waiting.store(true, Ordering::Release);
        }
    }

    /// Moves answers to a burst, as many as it has room for. Returns their number.
    #[inline]
    pub(super) fn take(&self, burst: &mut Burst) -> usize {
        if self.waiting.load(Ordering::Acquire) { self.take_some(burst) } else { 0 }
    }

    #[cold]
    fn take_some(&self, burst: &mut Burst) -> usize {
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = packets.len().min(burst.room());
        let mut rest = Burst::new(MAX_BATCH);
        for (number, packet) in packets.drain().enumerate() {
            if number < taken { burst.push(packet) } else { rest.push(packet) }
        }
        self.waiting.store(!rest.is_empty(), Ordering::Release);
        *packets = rest;
        taken
    }
}
