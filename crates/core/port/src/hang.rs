//! Detection of a device that no longer sends: a Tx queue that is full and stays full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time for which a full Tx queue may make no progress.
pub const TX_HANG_TIMEOUT: Duration = Duration::from_secs(2);

/// When a full queue was last seen to make progress.
pub struct TxWatchdog {
    progress: u64,
    since: Instant,
}

impl Default for TxWatchdog {
    fn default() -> Self {
        Self { progress: u64::MAX, since: Instant::now() }
    }
}

impl TxWatchdog {
    /// Checks for a hang. To be called when packets found no room, with a number that changes whenever the device has sent
    /// something: the head of the ring, or a count of packets.
    #[cold]
    pub fn check(&mut self, progress: u64, hang: &HangFlags) {
        if self.progress != progress {
            *self = Self { progress, since: Instant::now() };
        } else if self.since.elapsed() > TX_HANG_TIMEOUT {
            hang.tx_stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// Hangs that the queues of a device have reported.
#[derive(Default)]
pub struct HangFlags {
    tx_stuck: AtomicBool,
    before: AtomicBool,
    rx_stuck: AtomicBool,
}

impl HangFlags {
    /// Returns whether the device hangs: a Tx queue has reported before each of the last two calls, with a link at both, or an
    /// Rx queue did not stop. Two calls are needed because a queue makes no progress without a link, and has only just
    /// started again when the link returns.
    pub fn is_hung(&self, link: bool) -> bool {
        if self.rx_stuck.load(Ordering::Relaxed) {
            return true;
        }
        let now = self.tx_stuck.swap(false, Ordering::Relaxed) && link;
        self.before.swap(now, Ordering::Relaxed) && now
    }

    /// Records that an Rx queue did not stop when it was disabled.
    pub fn rx_stuck(&self) {
        self.rx_stuck.store(true, Ordering::Relaxed);
    }
}
