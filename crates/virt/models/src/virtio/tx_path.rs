//! The path of sent frames to the wire: software segmentation, then a queue of frames that wait for room.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_memory::{Burst, Flags, MAX_BATCH, Mempool};
use ringpass_port::{QueuePair, SoftwareOffload, TxQueue};

use super::counters::Counters;
use super::queue::BURST;
use super::tx_buffers::Buffers;

/// Frames that are ready for the wire.
#[derive(Clone)]
struct Ready(Arc<Mutex<Burst>>);

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Burst> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TxQueue for Ready {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut ready = self.lock();
        let count = burst.len().min(ready.room());
        burst.drain().take(count).for_each(|packet| ready.push(packet));
        count
    }
}

pub(super) struct TxPath {
    /// Packets as the driver posted them.
    pub(super) posted: Burst,
    pub(super) buffers: Buffers,
    segmenter: SoftwareOffload<Ready>,
    ready: Ready,
}

impl TxPath {
    pub(super) fn new(pool: &Mempool) -> Self {
        let ready = Ready(Arc::new(Mutex::new(Burst::new(MAX_BATCH))));
        let segmenter = SoftwareOffload::new(ready.clone(), Flags::default(), pool);
        Self { posted: Burst::new(BURST), buffers: Buffers::new(pool), segmenter, ready }
    }

    /// Returns whether frames wait for room on the wire.
    pub(super) fn has_pending(&self) -> bool {
        !self.posted.is_empty() || !self.ready.lock().is_empty()
    }

    /// Sends as many frames as the wire has room for. Returns how many.
    pub(super) fn flush(&mut self, wire: &mut QueuePair, counters: &mut Counters) -> usize {
        let mut moved = 0;
        loop {
            self.segmenter.tx_burst(&mut self.posted);
            let mut ready = self.ready.lock();
            if ready.is_empty() {
                return moved;
            }
            let bytes = |ready: &Burst| ready.iter().map(|packet| packet.total_len() as u64).sum::<u64>();
            let (count, before) = (ready.len(), bytes(&ready));
            wire.tx.tx_burst(&mut ready);
            let gone = count - ready.len();
            counters.tx_packets += gone as u64;
            counters.tx_bytes += before - bytes(&ready);
            moved += gone;
            if gone == 0 || !ready.is_empty() {
                return moved;
            }
        }
    }
}
