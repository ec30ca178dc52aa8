//! The loop that moves frames between a native port's queues and its rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_memory::Burst;
use ringpass_port::{QueuePair, WakeSource, Wakeable};

/// Moves frames between a native port's queues and its rings. Belongs to one thread.
pub struct RingForwarder {
    pairs: Vec<Pair>,
    dropped: Arc<AtomicU64>,
}

/// A queue of the port, and its rings.
struct Pair {
    port: QueuePair,
    rings: QueuePair,
    /// Frames that programs have sent and the port has not accepted yet.
    sending: Box<Burst>,
    received: Box<Burst>,
}

impl RingForwarder {
    pub(super) fn new(
        pairs: impl Iterator<Item = (QueuePair, QueuePair)>,
        batch: usize,
        dropped: Arc<AtomicU64>,
    ) -> Self {
        let burst = || Box::new(Burst::new(batch));
        let pair = |(port, rings)| Pair { port, rings, sending: burst(), received: burst() };
        Self { pairs: pairs.map(pair).collect(), dropped }
    }

    /// Moves one burst each way for each queue. Returns how many frames moved.
    pub fn round(&mut self) -> usize {
        let mut moved = 0;
        for Pair { port, rings, sending, received } in &mut self.pairs {
            // Frames that the port has no room for stay in the burst, and the frames after them in the ring.
            if sending.is_empty() {
                rings.rx.rx_burst(sending);
            }
            if !sending.is_empty() {
                moved += port.tx.tx_burst(sending);
            }
            let came = port.rx.rx_burst(received);
            if came > 0 {
                moved += came;
                rings.tx.tx_burst(received);
            }
            if !received.is_empty() {
                self.dropped.fetch_add(received.len() as u64, Relaxed);
                received.clear();
            }
        }
        moved
    }
}

impl Wakeable for RingForwarder {
    fn arm(&mut self) {
        for Pair { port, rings, .. } in &mut self.pairs {
            port.rx.arm();
            rings.rx.arm();
        }
    }

    fn disarm(&mut self) {
        for Pair { port, rings, .. } in &mut self.pairs {
            port.rx.disarm();
            rings.rx.disarm();
        }
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        for Pair { port, rings, sending, .. } in &self.pairs {
            port.rx.wake_sources(each);
            rings.rx.wake_sources(each);
            // A port does not signal when it has room again.
            if !sending.is_empty() {
                each(WakeSource::Polled);
            }
        }
    }
}
