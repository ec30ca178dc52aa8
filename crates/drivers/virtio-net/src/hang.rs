//! Detection of a device that no longer sends: a Tx queue that is full and stays full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a full Tx queue may make no progress.
const TX_HANG_TIMEOUT: Duration = Duration::from_secs(2);

/// When a full queue was last seen to make progress.
pub(crate) struct TxWatchdog {
    sent: u64,
    since: Instant,
}

impl Default for TxWatchdog {
    fn default() -> Self {
        Self { sent: u64::MAX, since: Instant::now() }
    }
}

impl TxWatchdog {
    /// Checks for a hang. To be called when packets found no room, with the number of packets sent so far.
    #[cold]
    pub(crate) fn check(&mut self, sent: u64, hang: &HangFlags) {
        if self.sent != sent {
            *self = Self { sent, since: Instant::now() };
        } else if self.since.elapsed() > TX_HANG_TIMEOUT {
            hang.stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// Hangs that the queues of a device have reported.
#[derive(Default)]
pub(crate) struct HangFlags {
    stuck: AtomicBool,
    before: AtomicBool,
}

impl HangFlags {
    /// Returns whether the device hangs: a queue has reported before each of the last two calls, with a link at
    /// both. Two calls are needed because a queue may make no progress without a link, and has only just
    /// started again when the link returns.
    pub(crate) fn is_hung(&self, link: bool) -> bool {
        let now = self.stuck.swap(false, Ordering::Relaxed) && link;
        self.before.swap(now, Ordering::Relaxed) && now
    }
}

pub(crate) fn report() -> String {
    format!("the card has sent nothing for {} s; check its back-end on the host", TX_HANG_TIMEOUT.as_secs())
}
