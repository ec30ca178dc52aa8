//! Tracks whether the interface of a port exists, and rejoins one that was created again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ringpass_port::PortStatus;

/// Reason for the end of a port whose interface is gone.
pub(crate) const GONE: &str = "the interface was deleted or moved to another network namespace";

/// State shared by a port and its queues.
pub(crate) struct Presence {
    name: String,
    rejoins: bool,
    away: AtomicBool,
}

impl Presence {
    /// Creates the state of a port whose interface exists. With `rejoins`, losing the interface makes the port
    /// wait for it; otherwise the port ends.
    pub(crate) fn new(name: &str, rejoins: bool) -> Self {
        Self { name: name.into(), rejoins, away: AtomicBool::new(false) }
    }

    /// Records that the interface was lost.
    #[cold]
    pub(crate) fn mark_lost(&self, status: &PortStatus, why: &str) {
        if !self.rejoins {
            status.set_gone(|| why.into());
        } else if !self.away.swap(true, Relaxed) {
            tracing::warn!("{}: {why}; the port is down until there is an interface of that name again", self.name);
        }
    }

    /// Returns whether the port waits for its interface.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Relaxed)
    }

    fn mark_back(&self) {
        self.away.store(false, Relaxed);
        tracing::warn!("{}: the interface is back", self.name);
    }
}

/// When the port last tried to rejoin its interface, and the error that it logged last.
#[derive(Default)]
pub(crate) struct RejoinTimer {
    last: Option<Instant>,
    last_error: Option<String>,
}

impl RejoinTimer {
    /// Time between two attempts.
    const RETRY_INTERVAL: Duration = Duration::from_millis(500);

    /// Tries to rejoin the interface if it is away and an attempt is due. `rejoin` returns `true` if it has
    /// attached to the interface, `false` if there is none.
    pub(crate) fn try_rejoin(&mut self, presence: &Presence, rejoin: impl FnOnce() -> io::Result<bool>) {
        if !presence.is_away() || self.last.is_some_and(|last| last.elapsed() < Self::RETRY_INTERVAL) {
            return;
        }
        self.last = Some(Instant::now());
        match rejoin() {
            Ok(true) => {
                presence.mark_back();
                *self = Self::default();
            }
            Ok(false) => {}
            Err(error) => {
                let why = Some(error.to_string());
                if self.last_error != why {
                    tracing::warn!("{}: the interface cannot be taken again: {error}; trying on", presence.name);
                    self.last_error = why;
                }
            }
        }
    }
}
