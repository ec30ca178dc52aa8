//! Detection of a card that no longer sends: a Tx queue that is full and stays full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a full Tx queue may make no progress.
const TX_HANG_TIMEOUT: Duration = Duration::from_secs(2);

/// When a full queue was last seen to make progress.
pub(crate) struct TxWatchdog {
    head: usize,
    since: Instant,
}

impl Default for TxWatchdog {
    fn default() -> Self {
        Self { head: usize::MAX, since: Instant::now() }
    }
}

impl TxWatchdog {
    /// Checks for a hang of the queue whose ring has this head. To be called when packets found no room in the
    /// ring.
    #[cold]
    pub(crate) fn check(&mut self, head: usize, hang: &HangFlags) {
        if self.head != head {
            *self = Self { head, since: Instant::now() };
        } else if self.since.elapsed() > TX_HANG_TIMEOUT {
            hang.stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// Hangs that the queues of a card have reported.
#[derive(Default)]
pub(crate) struct HangFlags {
    stuck: AtomicBool,
    before: AtomicBool,
    rx_stuck: AtomicBool,
}

impl HangFlags {
    /// Returns whether the card hangs: a Tx queue has reported before each of the last two calls, with a link
    /// at both, or an Rx queue did not stop. Two calls are needed because a queue makes no progress without a
    /// link, and has only just started again when the link returns.
    pub(crate) fn is_hung(&self, link: bool) -> bool {
        if self.rx_stuck.load(Ordering::Relaxed) {
            return true;
        }
        let now = self.stuck.swap(false, Ordering::Relaxed) && link;
        self.before.swap(now, Ordering::Relaxed) && now
    }

    /// Records that an Rx queue did not stop when it was disabled.
    pub(crate) fn rx_stuck(&self) {
        self.rx_stuck.store(true, Ordering::Relaxed);
    }

    /// Returns the reason for closing the port, for the user.
    pub(crate) fn report(name: &str) -> String {
        let limit = TX_HANG_TIMEOUT.as_secs();
        format!(
            "{name}: the card has sent nothing for {limit} s, or does not stop a queue; reset it, or power it off and on"
        )
    }
}
