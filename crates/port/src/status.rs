//! What the queues of a port in software report to its control side: counters, and why it is gone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{State, Stats};

/// Counters of one direction of one queue; cache lines of their own, since each belongs to another thread.
#[derive(Default)]
#[repr(align(128))]
pub struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    drops: AtomicU64,
}

impl Counters {
    /// Adds what became of a burst: packets that came through, their bytes, and packets that were lost.
    #[inline]
    pub fn count(&self, packets: usize, bytes: usize, drops: usize) {
        for (counter, n) in [(&self.packets, packets), (&self.bytes, bytes), (&self.drops, drops)] {
            if n > 0 {
                counter.fetch_add(n as u64, Relaxed);
            }
        }
    }

    /// As [`count`](Self::count), where no other thread ever counts: without locked instructions.
    #[inline]
    pub fn count_alone(&self, packets: usize, bytes: usize, drops: usize) {
        for (counter, n) in [(&self.packets, packets), (&self.bytes, bytes), (&self.drops, drops)] {
            if n > 0 {
                counter.store(counter.load(Relaxed) + n as u64, Relaxed);
            }
        }
    }

    /// What queues have received and sent, all together.
    pub fn sum(rx: &[Self], tx: &[Self]) -> Stats {
        let sum = |all: &[Self], field: fn(&Self) -> &AtomicU64| {
            all.iter().map(|counters| field(counters).load(Relaxed)).sum()
        };
        Stats {
            rx_packets: sum(rx, |c| &c.packets),
            rx_bytes: sum(rx, |c| &c.bytes),
            rx_drops: sum(rx, |c| &c.drops),
            tx_packets: sum(tx, |c| &c.packets),
            tx_bytes: sum(tx, |c| &c.bytes),
            tx_drops: sum(tx, |c| &c.drops),
        }
    }
}

/// Shared by a port and its queues.
pub struct Status {
    rx: Box<[Counters]>,
    tx: Box<[Counters]>,
    gone: OnceLock<String>,
}

impl Status {
    /// Of so many queues.
    pub fn new(queues: usize) -> Self {
        let counters = || (0..queues).map(|_| Counters::default()).collect();
        Self { rx: counters(), tx: counters(), gone: OnceLock::new() }
    }

    /// What a queue has received.
    ///
    /// # Panics
    /// If there is no such queue.
    #[inline]
    pub fn rx(&self, queue: usize) -> &Counters {
        &self.rx[queue]
    }

    /// What a queue has sent.
    ///
    /// # Panics
    /// If there is no such queue.
    #[inline]
    pub fn tx(&self, queue: usize) -> &Counters {
        &self.tx[queue]
    }

    /// All queues' counters together.
    pub fn stats(&self) -> Stats {
        Counters::sum(&self.rx, &self.tx)
    }

    /// Ends the port: its queues move nothing from here on. The first reason stays.
    #[cold]
    pub fn set_gone(&self, why: impl FnOnce() -> String) {
        self.gone.get_or_init(why);
    }

    /// Whether it has ended.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.get().is_some()
    }

    /// Whether it works, or why not.
    pub fn state(&self) -> State {
        self.gone.get().map_or(State::Running, |why| State::Gone(why.clone()))
    }
}
