//! Counters of the queues.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_port::Stats;

/// Of one queue. Written by its thread only; on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    drops: AtomicU64,
}

impl Counters {
    /// Adds what became of a burst.
    #[inline]
    pub(crate) fn count(&self, packets: usize, bytes: usize, drops: usize) {
        for (counter, n) in [(&self.packets, packets), (&self.bytes, bytes), (&self.drops, drops)] {
            if n > 0 {
                counter.store(counter.load(Relaxed) + n as u64, Relaxed);
            }
        }
    }
}

/// Of all queues.
pub(crate) struct AllCounters {
    pub(crate) rx: Box<[Counters]>,
    pub(crate) tx: Box<[Counters]>,
    /// Packets to the guest that were not copied. Added to once a burst.
    pub(crate) mapped: AtomicU64,
}

impl AllCounters {
    pub(crate) fn new(queues: usize) -> Self {
        let counters = || (0..queues).map(|_| Counters::default()).collect();
        Self { rx: counters(), tx: counters(), mapped: 0.into() }
    }

    pub(crate) fn stats(&self) -> Stats {
        let sum = |all: &[Counters], field: fn(&Counters) -> &AtomicU64| {
            all.iter().map(|counters| field(counters).load(Relaxed)).sum::<u64>()
        };
        Stats {
            rx_packets: sum(&self.rx, |c| &c.packets),
            rx_bytes: sum(&self.rx, |c| &c.bytes),
            rx_drops: sum(&self.rx, |c| &c.drops),
            tx_packets: sum(&self.tx, |c| &c.packets),
            tx_bytes: sum(&self.tx, |c| &c.bytes),
            tx_drops: sum(&self.tx, |c| &c.drops),
        }
    }
}
