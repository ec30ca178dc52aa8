//! State that the queues of a software port share with its control side: counters, and why the port is gone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{State, Stats};

/// Counters of one direction of one queue. They have cache lines of their own, since each queue belongs to
/// another thread.
#[derive(Default)]
#[repr(align(128))]
pub struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    drops: AtomicU64,
}

impl Counters {
    /// Adds the result of a burst: the packets that passed, their bytes, and the packets that were dropped.
    #[inline]
    pub fn count(&self, packets: usize, bytes: usize, drops: usize) {
        for (counter, n) in [(&self.packets, packets), (&self.bytes, bytes), (&self.drops, drops)] {
            if n > 0 {
                counter.fetch_add(n as u64, Relaxed);
            }
        }
    }

    /// Like [`count`](Self::count), but without locked instructions. For counters that only one thread updates.
    #[inline]
    pub fn count_single_writer(&self, packets: usize, bytes: usize, drops: usize) {
        for (counter, n) in [(&self.packets, packets), (&self.bytes, bytes), (&self.drops, drops)] {
            if n > 0 {
                counter.store(counter.load(Relaxed) + n as u64, Relaxed);
            }
        }
    }

    /// Returns the sums over all queues.
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

    /// Returns the counters of each pair of queues.
    pub fn of_each(rx: &[Self], tx: &[Self]) -> Vec<Stats> {
        rx.chunks(1).zip(tx.chunks(1)).map(|(rx, tx)| Self::sum(rx, tx)).collect()
    }
}

/// Counters and end of a port, shared with its queues.
pub struct PortStatus {
    rx: Box<[Counters]>,
    tx: Box<[Counters]>,
    gone: OnceLock<String>,
}

impl PortStatus {
    /// Creates zeroed counters for `queues` queue pairs.
    pub fn new(queues: usize) -> Self {
        let counters = || (0..queues).map(|_| Counters::default()).collect();
        Self { rx: counters(), tx: counters(), gone: OnceLock::new() }
    }

    /// Returns the counters of a receiving queue.
    ///
    /// # Panics
    /// If there is no such queue.
    #[inline]
    pub fn rx(&self, queue: usize) -> &Counters {
        &self.rx[queue]
    }

    /// Returns the counters of a sending queue.
    ///
    /// # Panics
    /// If there is no such queue.
    #[inline]
    pub fn tx(&self, queue: usize) -> &Counters {
        &self.tx[queue]
    }

    /// Returns the sums over all queues.
    pub fn stats(&self) -> Stats {
        Counters::sum(&self.rx, &self.tx)
    }

    /// Returns the counters of each queue pair.
    pub fn queue_stats(&self) -> Vec<Stats> {
        Counters::of_each(&self.rx, &self.tx)
    }

    /// Ends the port: its queues move no more packets. The first reason is kept.
    #[cold]
    pub fn set_gone(&self, why: impl FnOnce() -> String) {
        self.gone.get_or_init(why);
    }

    /// Whether the port has ended.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.get().is_some()
    }

    /// Returns whether the port works, or why not.
    pub fn state(&self) -> State {
        self.gone.get().map_or(State::Running, |why| State::Gone(why.clone()))
    }
}
