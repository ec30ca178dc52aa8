//! Rx queue mapping: a port receives directly into the buffers of the guest that is the destination. A card
//! writes frames there by DMA. Frames from another guest are copied once instead of twice (a service chain).

use ringpass_port::{Error, Port, QueuePair};

/// Takes the queues of two ports and pairs them up. With `mapped`, each Rx queue borrows the buffers of the
/// opposite port.
pub fn take_queue_pairs([a, b]: [&mut Box<dyn Port>; 2], mapped: bool) -> Result<Vec<(QueuePair, QueuePair)>, Error> {
    if !mapped {
        return Ok(a.take_queues().into_iter().zip(b.take_queues()).collect());
    }
    // Lending is requested before the queues are taken, because guests connect afterwards and must be offered
    // out-of-order completion of buffers.
    let [lent_by_a, lent_by_b] =
        [&mut *a, &mut *b].map(|port| (0..).map_while(|pair| port.lending(pair)).collect::<Vec<_>>());
    if lent_by_a.is_empty() && lent_by_b.is_empty() {
        return Err(Error::Config("--map takes at least one port with a guest, such as vhost:PATH".into()));
    }
    let mut pairs: Vec<_> = a.take_queues().into_iter().zip(b.take_queues()).collect();
    for ((a, _), lending) in pairs.iter_mut().zip(&lent_by_b) {
        a.rx.borrow_from(lending)?;
    }
    for ((_, b), lending) in pairs.iter_mut().zip(&lent_by_a) {
        b.rx.borrow_from(lending)?;
    }
    Ok(pairs)
}
