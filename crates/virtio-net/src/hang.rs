//! A Tx queue that is full and stays full: a device that no longer sends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a full queue may stand still.
const LIMIT: Duration = Duration::from_secs(2);

/// When a full queue last was seen to move.
pub(crate) struct Watch {
    sent: u64,
    since: Instant,
}

impl Default for Watch {
    fn default() -> Self {
        Self { sent: u64::MAX, since: Instant::now() }
    }
}

impl Watch {
    /// To be called when packets found no room, with how many were sent so far.
    #[cold]
    pub(crate) fn look(&mut self, sent: u64, hang: &Hang) {
        if self.sent != sent {
            *self = Self { sent, since: Instant::now() };
        } else if self.since.elapsed() > LIMIT {
            hang.stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// What the queues have reported.
#[derive(Default)]
pub(crate) struct Hang {
    stuck: AtomicBool,
    before: AtomicBool,
}

impl Hang {
    /// Whether a queue has reported since the last two times that this was asked, with a link both times: a queue may
    /// stand still without one, and has just begun to move when it comes back.
    pub(crate) fn seen(&self, link: bool) -> bool {
        let now = self.stuck.swap(false, Ordering::Relaxed) && link;
        self.before.swap(now, Ordering::Relaxed) && now
    }
}

pub(crate) fn report() -> String {
    format!("the card has sent nothing for {} s; look at what is behind it on the host", LIMIT.as_secs())
}
