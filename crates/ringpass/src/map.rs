//! `--map`: what a port receives lies in the buffers of the guest that it goes to. A card writes it there; of what another
//! guest sends, one copy is made instead of two (a service chain).

use ringpass_port::{Error, Port, Queues};

/// Takes the queues of two ports between which packets pass, in pairs.
pub fn take_pairs([a, b]: &mut [Box<dyn Port>; 2], mapped: bool) -> Result<Vec<(Queues, Queues)>, Error> {
    if !mapped {
        return Ok(a.take_queues().into_iter().zip(b.take_queues()).collect());
    }
    // Before the queues are taken and guests can come: they are told that buffers come back in any order.
    let [lent_by_a, lent_by_b] = [&a, &b].map(|port| (0..).map_while(|pair| port.lending(pair)).collect::<Vec<_>>());
    if lent_by_a.is_empty() && lent_by_b.is_empty() {
        return Err(Error::Other("--map takes at least one port with a guest, as vhost:PATH".into()));
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
