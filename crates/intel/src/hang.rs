//! A Tx queue that is full and stays full: a card that no longer sends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::tx::Tx;

/// How long a full queue may stand still.
const LIMIT: Duration = Duration::from_secs(2);

/// When a full queue last was seen to move.
pub(crate) struct Watch {
    head: usize,
    since: Instant,
}

impl Default for Watch {
    fn default() -> Self {
        Self { head: usize::MAX, since: Instant::now() }
    }
}

impl Tx {
    /// To be called when packets found no room.
    #[cold]
    pub(crate) fn watch(&mut self) {
        if self.watch.head != self.ring.head {
            self.watch = Watch { head: self.ring.head, since: Instant::now() };
        } else if self.watch.since.elapsed() > LIMIT {
            self.ring.device.hang.stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// What the queues have reported.
#[derive(Default)]
pub struct Hang {
    stuck: AtomicBool,
    before: AtomicBool,
    rx_stuck: AtomicBool,
}

impl Hang {
    /// Whether a queue has reported since the last two times that this was asked, with a link both times: a queue
    /// stands still without one, and has just begun to move when it comes back.
    pub fn seen(&self, link: bool) -> bool {
        if self.rx_stuck.load(Ordering::Relaxed) {
            return true;
        }
        let now = self.stuck.swap(false, Ordering::Relaxed) && link;
        self.before.swap(now, Ordering::Relaxed) && now
    }

    /// An Rx queue did not stop when it was told to.
    pub(crate) fn rx_stuck(&self) {
        self.rx_stuck.store(true, Ordering::Relaxed);
    }

    /// Why a port is given up.
    pub fn report(name: &str) -> String {
        let limit = LIMIT.as_secs();
        format!(
            "{name}: the card has sent nothing for {limit} s, or does not stop a queue; reset it, or power it off and on"
        )
    }
}
