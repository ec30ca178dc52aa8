//! Counters of a port.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use ringpass_port::{self as port, Stats};
use serde_json::{Value, json};

/// Counters of one direction. Written by its queue only.
#[derive(Default)]
pub(crate) struct DirectionCounters {
    frames: port::Counters,
    bad_slots: AtomicU64,
}

/// Result of a burst.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) packets: usize,
    pub(crate) bytes: usize,
    pub(crate) drops: usize,
    pub(crate) bad_slots: usize,
}

impl DirectionCounters {
    #[inline]
    pub(crate) fn count(&self, tally: &Tally) {
        let Tally { packets, bytes, drops, bad_slots } = *tally;
        self.frames.count_single_writer(packets, bytes, drops);
        if bad_slots > 0 {
            self.bad_slots.store(self.bad_slots.load(Relaxed) + bad_slots as u64, Relaxed);
        }
    }
}

/// Counters of a port.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) rx: DirectionCounters,
    pub(crate) tx: DirectionCounters,
    resets: AtomicU64,
    /// The first error of a program.
    fault: Mutex<Option<String>>,
}

impl Counters {
    /// Counts a reset of a ring, and keeps the reason of the first one.
    #[cold]
    pub(crate) fn reset(&self, why: impl FnOnce() -> String) {
        self.resets.fetch_add(1, Relaxed);
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(why);
    }

    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Relaxed)
    }

    pub(crate) fn bad_slots(&self) -> u64 {
        self.rx.bad_slots.load(Relaxed) + self.tx.bad_slots.load(Relaxed)
    }

    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counters by name.
    pub(crate) fn json(&self) -> Value {
        let mut counters = json!(self.stats());
        counters["resets"] = self.resets().into();
        counters["bad_slots"] = self.bad_slots().into();
        if let Some(fault) = self.fault() {
            counters["fault"] = fault.into();
        }
        counters
    }

    pub(crate) fn stats(&self) -> Stats {
        port::Counters::sum(slice::from_ref(&self.rx.frames), slice::from_ref(&self.tx.frames))
    }
}
