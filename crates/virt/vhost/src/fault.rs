//! Protocol violations of a guest.

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
