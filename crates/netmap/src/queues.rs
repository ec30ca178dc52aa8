//! A netmap port's rings as queues of packets: frames are copied between slots and the packets of a pool. For programs that
//! have a port open, and for drivers of ports that were passed into a virtual machine.

mod own;
mod rx;
mod tx;

use std::sync::Arc;

use ringpass_memory::{Flags, Mempool};
use ringpass_peer::Waiter;
use ringpass_port::{Error, PortConfig, Queues, Software, Status};

use crate::{Buffers, PortRing, SyncError};
use own::Own;
use rx::Rx;
use tx::Tx;

/// What errors of rings begin with.
pub(crate) const SENDING: &str = "sending: ";
/// See [`SENDING`].
pub(crate) const RECEIVING: &str = "receiving: ";

/// A port's rings, which these queues alone use.
pub struct Rings {
    /// Those to send.
    pub tx: Vec<PortRing>,
    /// Those to receive, each with an eventfd of its own that the other side signals, if there is one.
    pub rx: Vec<(PortRing, Option<Waiter>)>,
}

/// The queues of a port, as many as the configuration asks for: each with a ring to send, while the rings to receive are
/// distributed over them all. An error if there are more queues than rings of either direction.
///
/// Frames may have as many slots as they take; what is longer than the MTU allows is dropped and counted.
pub fn queues(
    rings: Rings,
    buffers: &Buffers,
    config: &PortConfig,
    pool: &Mempool,
    status: &Arc<Status>,
) -> Result<Vec<Queues>, Error> {
    let (tx, rx) = (rings.tx.len(), rings.rx.len());
    if config.queues > tx.min(rx) {
        let queues = config.queues;
        return Err(Error::Other(format!(
            "{queues} queues of a netmap port with {tx} rings to send and {rx} to receive"
        )));
    }
    let wrong = |error: SyncError| Error::Other(format!("a ring of this netmap port: {error}"));
    let mut received: Vec<Vec<_>> = (0..config.queues).map(|_| Vec::new()).collect();
    for (number, (ring, wake)) in rings.rx.into_iter().enumerate() {
        received[number % config.queues].push((Own::new(ring).map_err(wrong)?, wake));
    }
    let pair = |(queue, (tx, rx))| {
        let tx = Tx::new(Own::new(tx).map_err(wrong)?, buffers.clone(), config.mtu, queue, status.clone());
        let rx = Rx::new(rx, buffers.clone(), config.mtu, pool.cache(), queue, status.clone());
        Ok(Queues { rx: Box::new(rx), tx: Box::new(Software::new(tx, Flags::default(), pool)) })
    };
    rings.tx.into_iter().zip(received).enumerate().map(pair).collect()
}

/// What became of a burst: packets that came through, their bytes, and packets that were lost.
#[derive(Default)]
struct Counts {
    packets: usize,
    bytes: usize,
    drops: usize,
}
