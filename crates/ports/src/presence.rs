//! Whether the interface behind a port is there, where the port may wait for another one of its name.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ringpass_port::Status;

/// Shared by a port and its queues.
pub(crate) struct Presence {
    name: String,
    rejoins: bool,
    away: AtomicBool,
}

impl Presence {
    /// Of a port whose interface is there. If it `rejoins`, it waits for the interface to come back; else the loss ends it.
    pub(crate) fn new(name: &str, rejoins: bool) -> Self {
        Self { name: name.into(), rejoins, away: AtomicBool::new(false) }
    }

    /// The interface is gone.
    #[cold]
    pub(crate) fn lost(&self, status: &Status, why: &str) {
        if !self.rejoins {
            status.set_gone(|| why.into());
        } else if !self.away.swap(true, Relaxed) {
            tracing::warn!("{}: {why}; the port is down until there is an interface of that name again", self.name);
        }
    }

    /// Whether the port waits for an interface.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Relaxed)
    }

    fn back(&self) {
        self.away.store(false, Relaxed);
        tracing::warn!("{}: the interface is back", self.name);
    }
}

/// When a port looks for its interface, and what it said last.
#[derive(Default)]
pub(crate) struct Attempts {
    last: Option<Instant>,
    told: Option<String>,
}

impl Attempts {
    /// Time between two looks.
    const PAUSE: Duration = Duration::from_millis(500);

    /// Looks for the interface, if it is away and it is time: `rejoin` takes it if it is there (`true`).
    pub(crate) fn look(&mut self, presence: &Presence, rejoin: impl FnOnce() -> io::Result<bool>) {
        if !presence.is_away() || self.last.is_some_and(|last| last.elapsed() < Self::PAUSE) {
            return;
        }
        self.last = Some(Instant::now());
        match rejoin() {
            Ok(true) => {
                presence.back();
                *self = Self::default();
            }
            Ok(false) => {}
            Err(error) => {
                let why = Some(error.to_string());
                if self.told != why {
                    tracing::warn!("{}: the interface cannot be taken again: {error}; trying on", presence.name);
                    self.told = why;
                }
            }
        }
    }
}
