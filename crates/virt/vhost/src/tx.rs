//! The transmit queue: copies frames into buffers that the guest has made available.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{Burst, MAX_BATCH, Mempool};
use ringpass_port::{SoftwareOffload, TxQueue};
use ringpass_virtio::device::ChainBatch;

use crate::copy_mode::CopyMode;
use crate::negotiated::GuestOffloads;
use crate::shared::{Shared, SharedServer};
use crate::tx_format::{Sent, TxFormat};
use crate::vring::{with_logged_ring, with_ring};

/// Transmit queue of the port, which carries out in software the offloads that the guest does not accept.
pub(crate) struct Tx {
    sender: SoftwareOffload<Sender>,
    guest_offloads: GuestOffloads,
    shared: Arc<Shared>,
}

/// Sends to one of the queue pairs that the guest has enabled.
struct Sender {
    queue: usize,
    taken: ChainBatch,
    copying: CopyMode,
    shared: Arc<Shared>,
    _serving: SharedServer,
}

impl Tx {
    pub(crate) fn new(
        queue: usize,
        shared: &Arc<Shared>,
        pool: &Mempool,
        copying: CopyMode,
        serving: &SharedServer,
    ) -> Self {
        let taken = ChainBatch::with_capacity(MAX_BATCH);
        let sender = Sender { queue, taken, copying, shared: shared.clone(), _serving: serving.clone() };
        let guest_offloads = GuestOffloads::Plain;
        Self {
            sender: SoftwareOffload::new(sender, guest_offloads.requests(), pool),
            guest_offloads,
            shared: shared.clone(),
        }
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let guest_offloads = self.shared.guest_offloads();
        if guest_offloads != self.guest_offloads {
            self.guest_offloads = guest_offloads;
            self.sender.set_hardware(guest_offloads.requests());
        }
        self.sender.tx_burst(burst)
    }
}

impl TxQueue for Sender {
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let Self { queue, taken, copying, shared, .. } = self;
        let Some((number, vring)) = shared.route(*queue).filter(|_| !burst.is_empty()) else { return 0 };
        let mut state = vring.lock_datapath();
        let Some(running) = state.active() else { return 0 };
        let (mut sent, size) = (Sent::default(), running.size());
        taken.begin(ChainBatch::BUDGET);
        let turn = running.turns.begin();
        let burst_to =
            TxFormat { negotiated: running.negotiated, longest: shared.longest(), size, copied: copying.mask() };
        let result = match &mut running.mapped {
            None => with_logged_ring!(running, ring => burst_to.send(ring, taken, burst, &mut sent)),
            Some(mapped) => {
                with_ring!(&mut running.ring, ring => mapped.send(ring, &burst_to, (taken, burst), &mut sent))
            }
        };
        let result = result.and(running.turns.end(turn));
        if sent.call {
            running.call();
        }
        if let Err(fault) = result {
            running.broken = true;
            shared.faults.report(number, &fault);
        }
        drop(state);
        burst.discard(sent.done);
        let done = sent.done + sent.lent;
        if sent.mapped > 0 {
            shared.counters.mapped.fetch_add(sent.mapped as u64, Relaxed);
        }
        shared.counters.tx[*queue].count_single_writer(done - sent.drops, sent.bytes, sent.drops);
        done
    }
}
