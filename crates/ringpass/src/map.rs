//! `--map`: a card receives into the buffers of the guest that its frames go to.

use ringpass_port::{Error, Port, Queues};

/// Takes the queues of two ports between which packets pass, in pairs. Mapped, what one of them receives lies in the
/// buffers of the other one's guest.
pub fn take_pairs([a, b]: &mut [Box<dyn Port>; 2], mapped: bool) -> Result<Vec<(Queues, Queues)>, Error> {
    let (guest, card, swapped) = match (mapped, a.lending(0).is_some(), b.lending(0).is_some()) {
        (false, ..) => return Ok(a.take_queues().into_iter().zip(b.take_queues()).collect()),
        (true, false, true) => (b, a, false),
        (true, true, false) => (a, b, true),
        (true, ..) => return Err(Error::Other("--map takes a card and a port with a guest, as vhost:PATH".into())),
    };
    let cards = map_all(&**guest, card.take_queues())?;
    // Guests come when their port's queues are taken, and find that they are mapped.
    let pairs = cards.into_iter().zip(guest.take_queues());
    Ok(if swapped { pairs.map(|(card, guest)| (guest, card)).collect() } else { pairs.collect() })
}

/// Maps each of a card's queues to the guest's queue of the same pair.
fn map_all(guest: &dyn Port, mut cards: Vec<Queues>) -> Result<Vec<Queues>, Error> {
    for (pair, queues) in cards.iter_mut().enumerate() {
        if let Some(lending) = guest.lending(pair) {
            queues.rx.borrow_from(&lending)?;
        }
    }
    Ok(cards)
}
