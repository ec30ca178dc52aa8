//! Protocol violations of a guest.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ringpass_vhost_user::Ended;
use ringpass_virtio::device::Broken;

/// Violation that ends the guest's session.
#[derive(Debug, PartialEq)]
pub(crate) enum Fault {
    /// The ring breaks the rules of virtqueues.
    Ring(Broken),
    /// A chain of this many bytes is too short for a virtio-net header.
    NoHeader(usize),
    /// Bursts took this long, because the guest's memory kept the thread waiting.
    LongTurn(Duration),
}

impl Fault {
    /// Returns why the session of a guest ends that did this to a queue.
    pub(crate) fn end(&self, queue: usize) -> Ended {
        let why = format!("queue {queue}: {self}");
        if matches!(self, Self::LongTurn(_)) { Ended::SlowMemory(why) } else { Ended::Fault(why) }
    }
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Ring(broken)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ring(broken) => write!(f, "{broken}"),
            Self::NoHeader(len) => write!(f, "a chain of {len} bytes is too short for the header of a frame"),
            Self::LongTurn(took) => {
                let millis = took.as_millis();
                write!(
                    f,
                    "a burst took {millis} ms, waiting for the guest's memory; is it swapped, or are holes punched into it?"
                )
            }
        }
    }
}

/// The guest's faults: how many, and the first one of the session.
#[derive(Default)]
pub(crate) struct FaultLog {
    count: AtomicU64,
    first: Mutex<Option<Ended>>,
}

impl FaultLog {
    /// Counts a fault of the guest and records its reason; only the first reason of a session is kept.
    #[cold]
    pub(crate) fn report(&self, queue: usize, fault: &Fault) {
        self.count.fetch_add(1, Relaxed);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| fault.end(queue));
    }

    /// Takes the recorded fault, if there is one.
    pub(crate) fn take(&self) -> Option<Ended> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns how many faults were reported in all sessions.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_of_a_session_is_its_reason() {
        let faults = FaultLog::default();
        faults.report(1, &Fault::NoHeader(3));
        faults.report(0, &Fault::NoHeader(4));
        assert!(faults.take().is_some_and(|why| why.to_string().starts_with("queue 1: a chain of 3 bytes")));
        assert!(faults.take().is_none());
        assert_eq!(faults.count(), 2);
    }
}
