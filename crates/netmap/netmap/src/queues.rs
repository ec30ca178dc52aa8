//! A netmap port's rings as queues of packets: frames are copied between slots and packets of a pool. Used by
//! programs that have a port open, and by drivers of ports that were passed through to a virtual machine.

mod cursor;
mod rx;
mod tx;

use std::sync::Arc;

use ringpass_ipc::EventWaiter;
use ringpass_memory::{Flags, Mempool};
use ringpass_port::{Error, PortConfig, PortStatus, QueuePair, SoftwareOffload};

use crate::{Buffers, PortRing, SyncError};
use cursor::RingCursor;
use rx::Rx;
use tx::{NoTx, Tx};

/// Prefix of errors of Tx rings.
pub(crate) const SENDING: &str = "sending: ";
/// Prefix of errors of Rx rings.
pub(crate) const RECEIVING: &str = "receiving: ";

/// Creates the queues of a port, as many as the configuration asks for, which use its rings alone. Rx rings come with
/// the eventfd that the other side signals, if there is one. Each queue has one Tx ring; the Rx rings are distributed
/// over all queues.
///
/// Without Tx rings, frames to be sent are dropped and counted; without Rx rings, none are received.
///
/// Frames may span any number of slots; those longer than the MTU allows are dropped and counted.
///
/// # Errors
/// There are more queues than rings of a direction that has rings, no rings at all, or a ring is broken.
pub fn queues(
    tx_rings: Vec<PortRing>,
    rx_rings: Vec<(PortRing, Option<EventWaiter>)>,
    buffers: &Buffers,
    config: &PortConfig,
    pool: &Mempool,
    status: &Arc<PortStatus>,
) -> Result<Vec<QueuePair>, Error> {
    let (tx, rx) = (tx_rings.len(), rx_rings.len());
    let too_few = |rings: usize| rings > 0 && rings < config.queues;
    if too_few(tx) || too_few(rx) || tx + rx == 0 {
        let queues = config.queues;
        return Err(Error::Config(format!(
            "{queues} queues of a netmap port with {tx} rings to send and {rx} to receive; each queue needs one"
        )));
    }
    let wrong = |error: SyncError| Error::Fault(format!("a ring of this netmap port: {error}"));
    let mut received: Vec<Vec<_>> = (0..config.queues).map(|_| Vec::new()).collect();
    for (number, (ring, wake)) in rx_rings.into_iter().enumerate() {
        received[number % config.queues].push((RingCursor::new(ring).map_err(wrong)?, wake));
    }
    let mut tx_rings = tx_rings.into_iter();
    let pair = |(queue, rx)| {
        let rx = Rx::new(rx, buffers.clone(), config.mtu, pool.cache(), queue, status.clone());
        let Some(ring) = tx_rings.next() else {
            return Ok(QueuePair { rx: Box::new(rx), tx: Box::new(NoTx { queue, status: status.clone() }) });
        };
        let tx = Tx::new(RingCursor::new(ring).map_err(wrong)?, buffers.clone(), config.mtu, queue, status.clone());
        Ok(QueuePair { rx: Box::new(rx), tx: Box::new(SoftwareOffload::new(tx, Flags::default(), pool)) })
    };
    received.into_iter().enumerate().map(pair).collect()
}

/// Result of a burst: packets passed on, their bytes, and packets dropped.
#[derive(Default)]
struct Counts {
    packets: usize,
    bytes: usize,
    drops: usize,
}
