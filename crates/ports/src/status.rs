//! What the queues of a port report to its control side: counters, and why it is gone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_port::{State, Stats};

/// Counters of one direction of one queue; cache lines of their own, since each belongs to another thread.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    drops: AtomicU64,
}

impl Counters {
    /// Adds a burst that came through.
    pub(crate) fn count(&self, packets: usize, bytes: usize) {
        self.packets.fetch_add(packets as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Adds packets that were lost.
    pub(crate) fn count_drops(&self, packets: usize) {
        if packets > 0 {
            self.drops.fetch_add(packets as u64, Relaxed);
        }
    }
}

/// Shared by a port and its queues.
pub(crate) struct Status {
    rx: Box<[Counters]>,
    tx: Box<[Counters]>,
    gone: OnceLock<String>,
}

impl Status {
    pub(crate) fn new(queues: usize) -> Self {
        let counters = || (0..queues).map(|_| Counters::default()).collect();
        Self { rx: counters(), tx: counters(), gone: OnceLock::new() }
    }

    pub(crate) fn rx(&self, queue: usize) -> &Counters {
        &self.rx[queue]
    }

    pub(crate) fn tx(&self, queue: usize) -> &Counters {
        &self.tx[queue]
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

    /// The first reason stays.
    #[cold]
    pub(crate) fn set_gone(&self, why: impl FnOnce() -> String) {
        self.gone.get_or_init(why);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get().is_some()
    }

    pub(crate) fn state(&self) -> State {
        self.gone.get().map_or(State::Running, |why| State::Gone(why.clone()))
    }
}

/// Whether a frame is one that a port with this MTU passes: at least a header (14 bytes), at most header and payload,
/// and 4 bytes more with a VLAN tag (IEEE 802.3, 3.2.7).
pub(crate) fn passes(frame: &[u8], mtu: usize) -> bool {
    const HEADER: usize = 14;
    let tag = if matches!(frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8])) { 4 } else { 0 };
    (HEADER..=HEADER + mtu + tag).contains(&frame.len())
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn frames_pass_up_to_the_mtu_and_a_tag() {
        let mut frame = [0; 1600];
        assert!(!passes(&frame[..13], 1500) && passes(&frame[..14], 1500));
        assert!(passes(&frame[..1514], 1500) && !passes(&frame[..1515], 1500));
        frame[12] = 0x81;
        assert!(passes(&frame[..1518], 1500) && !passes(&frame[..1519], 1500));
    }
}
