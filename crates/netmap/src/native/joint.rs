//! The loop that moves frames between a port's queues and rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_memory::Burst;
use ringpass_port::{Queues, Wake, Wakeable};

/// See the module. Belongs to one thread.
pub struct Joint {
    pairs: Vec<Pair>,
    dropped: Arc<AtomicU64>,
}

/// A queue of the port, and its rings.
struct Pair {
    port: Queues,
    rings: Queues,
    /// What programs have sent and the port has not taken yet.
    sending: Box<Burst>,
    received: Box<Burst>,
}

impl Joint {
    pub(super) fn new(pairs: impl Iterator<Item = (Queues, Queues)>, batch: usize, dropped: Arc<AtomicU64>) -> Self {
        let burst = || Box::new(Burst::new(batch));
        let pair = |(port, rings)| Pair { port, rings, sending: burst(), received: burst() };
        Self { pairs: pairs.map(pair).collect(), dropped }
    }

    /// One burst each way of each queue. Returns how many frames moved.
    pub fn round(&mut self) -> usize {
        let mut moved = 0;
        for Pair { port, rings, sending, received } in &mut self.pairs {
            // What the port has no room for keeps its place: the rest waits in the ring.
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

impl Wakeable for Joint {
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

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        for Pair { port, rings, sending, .. } in &self.pairs {
            port.rx.wakes(each);
            rings.rx.wakes(each);
            // A port does not tell when it has room again.
            if !sending.is_empty() {
                each(Wake::Turns);
            }
        }
    }
}
