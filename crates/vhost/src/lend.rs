//! Rx queue mapping: buffers that the guest has made available are lent to the Rx queue of a card, which writes frames
//! where the guest wants them. Sent here, such a packet is only told to the guest: no copy.

use std::sync::{Arc, Weak};

use ringpass_memory::{Burst, Flags, Lender, Lending, Lent, Loans, Packet};
use ringpass_virtio::device::{Access, Chain, Piece, Taken, Used, Virtqueue};
use ringpass_virtio::net_header;

use crate::agreed::Agreed;
use crate::fault::Fault;
use crate::rx::{clear, empty};
use crate::shared::Shared;
use crate::tx::{SPECIAL, Sent, To, write_header};
use crate::vring::{Running, Vring, with_ring};

/// A guest's queue, as far as it is lent.
pub(crate) struct Mapped {
    lent: Lent,
    /// Chains that are lent, and may be.
    count: usize,
    most: usize,
    taken: Taken,
}

/// One queue of a guest's that buffers can be lent from.
pub(crate) struct Lends {
    vrings: Arc<[Vring]>,
    number: usize,
    /// Where a guest's faults are told.
    shared: Weak<Shared>,
}

impl Lends {
    pub(crate) fn lending(number: usize, vrings: &Arc<[Vring]>, shared: &Weak<Shared>) -> Arc<Lending> {
        Lending::new(Box::new(Self { vrings: vrings.clone(), number, shared: shared.clone() }))
    }
}

impl Lender for Lends {
    fn lend(&self, loans: &mut Loans<'_>) {
        let Some(mut state) = self.vrings[self.number].for_packets() else { return };
        let Some(running) = state.moving() else { return };
        let Running { ring, agreed, mapped: Some(mapped), .. } = running else { return };
        if !loans.are_for(mapped.lent) {
            return;
        }
        if let Err(fault) = with_ring!(ring, ring => mapped.lend(ring, agreed, loans)) {
            running.broken = true;
            self.shared.upgrade().iter().for_each(|shared| shared.report(self.number, &fault));
        }
    }
}

impl Mapped {
    /// Of a ring with so many descriptors.
    pub(crate) fn new(lent: Lent, size: usize) -> Self {
        // A quarter stays for frames from elsewhere, which are copied: a card that receives nothing keeps what it has.
        let most = size - size / 4;
        Self { lent, count: 0, most, taken: empty() }
    }

    /// Lends what is available, up to the first chain that a card cannot use: one of several pieces, or too short a one.
    /// That stays for frames that are copied.
    fn lend(&mut self, ring: &mut impl Virtqueue, agreed: &Agreed, loans: &mut Loans<'_>) -> Result<(), Fault> {
        clear(&mut self.taken);
        ring.take(Access::Write, loans.room().min(self.most - self.count), &mut self.taken)?;
        let least = agreed.header + loans.least();
        let chains = &self.taken.chains;
        let mut lent = 0;
        for &Chain { id, descriptors, first: Piece { start, len }, more } in chains {
            if descriptors != 1 || more.1 != 0 || (len as usize) < least {
                break;
            }
            // SAFETY: inside the piece, which is the guest's, in memory that the term was begun with. The ring gives no
            // id twice before it is given back, and ids are below the ring's size.
            unsafe {
                loans.lend(id.into(), start.add(agreed.header), agreed.header, len as usize - agreed.header);
            }
            lent += 1;
        }
        self.count += lent;
        let rest = chains.len() - lent;
        ring.put_back(&mut self.taken, rest);
        Ok(())
    }

    /// Sends a burst: the guest's own buffers go back to it, other packets are copied.
    pub(crate) fn send(
        &mut self,
        ring: &mut impl Virtqueue,
        to: &To,
        (taken, burst): (&mut Taken, &mut Burst),
        sent: &mut Sent,
    ) -> Result<(), Fault> {
        loop {
            if to.agreed.header == net_header::LEN {
                self.give::<{ net_header::LEN }>(ring, to, burst, sent);
            } else {
                self.give::<{ net_header::LEN + 2 }>(ring, to, burst, sent);
            }
            if burst.is_empty() {
                return Ok(());
            }
            let others = burst.iter().take_while(|packet| self.own(packet, to).is_none()).count();
            let before = std::mem::take(&mut sent.done);
            let result = to.send(ring, taken, &burst[..others], sent);
            burst.discard(sent.done);
            sent.lent += sent.done;
            let all = std::mem::replace(&mut sent.done, before) == others;
            if !all || result.is_err() {
                return result;
            }
        }
    }

    /// The chain that a packet lies in, if that is lent now and the guest can have it as it is.
    #[inline(always)]
    fn own(&self, packet: &Packet, to: &To) -> Option<u32> {
        let plain = packet.flags().any(Flags::LENT) && !packet.flags().any(SPECIAL) && to.passes(packet.len());
        if plain { self.lent.number(packet) } else { None }
    }

    /// Gives the packets at the front that are the guest's own back to it.
    #[inline(always)]
    fn give<const HEADER: usize>(&mut self, ring: &mut impl Virtqueue, to: &To, burst: &mut Burst, sent: &mut Sent) {
        let (verdicts, mut settling) = (to.verdicts(), self.lent.settle());
        let (mut own, mut bytes) = (0, 0);
        let mut drain = burst.drain();
        ring.give_all(std::iter::from_fn(|| {
            let mut id = None;
            let mut packet = drain.next_if(|packet| {
                id = self.own(packet, to);
                id.is_some()
            })?;
            bytes += packet.len();
            own += 1;
            let written = front::<HEADER>(&mut packet, verdicts);
            settling.add(packet);
            Some(Used { id: id? as u16, descriptors: 1, written })
        }));
        drop(drain);
        if own > 0 {
            self.count -= own;
            (sent.lent, sent.mapped, sent.bytes) = (sent.lent + own, sent.mapped + own, sent.bytes + bytes);
            sent.call |= ring.publish();
        }
    }
}

/// Puts the header at the start of a lent packet's buffer and the frame behind it, where it mostly is: only a frame that
/// was cut at its front (decapsulated) has to move. Returns the length of both.
#[inline(always)]
fn front<const HEADER: usize>(packet: &mut Packet, verdicts: Flags) -> u32 {
    let (headroom, frame, valid) = (packet.headroom(), packet.len(), packet.flags().any(verdicts));
    // SAFETY: the packet keeps to its buffer, which was lent with a headroom of a header. Header and frame are no longer
    // than all of that. It is the guest's, who may change it meanwhile; no reference to it is left.
    unsafe {
        let start = packet.as_mut_ptr().sub(headroom);
        if headroom != HEADER {
            std::ptr::copy(start.add(headroom), start.add(HEADER), frame);
        }
        write_header::<HEADER>(start, valid);
    }
    (HEADER + frame) as u32
}
