//! Rx queue mapping: buffers that the guest has made available are lent to the Rx queue of a card, which writes frames
//! where the guest wants them. Sent here, such a packet is only told to the guest: no copy.

use std::sync::{Arc, Weak};

use ringpass_memory::{Burst, Flags, Lender, Lending, Lent, Loan, Loans, MAGAZINE, Packet, Settled};
use ringpass_virtio::device::{Access, Chain, Piece, Taken, Used, Virtqueue};
use ringpass_virtio::net_header;

use crate::agreed::Agreed;
use crate::fault::Fault;
use crate::shared::Shared;
use crate::tx::{Sent, To, write_header};
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
        Self { lent, count: 0, most, taken: Taken::with_capacity(MAGAZINE) }
    }

    /// Lends what is available, up to the first chain that a card cannot use: one of several pieces, or too short a one.
    /// That stays for frames that are copied.
    fn lend(&mut self, ring: &mut impl Virtqueue, agreed: &Agreed, loans: &mut Loans<'_>) -> Result<(), Fault> {
        // Of one descriptor each: a chain of more ends the search.
        let most = loans.room().min(self.most - self.count);
        self.taken.begin(most);
        ring.take(Access::Write, most, &mut self.taken)?;
        let (header, chains) = (agreed.header, &self.taken.chains);
        let least = header + loans.least();
        let fits = |chain: &&Chain| chain.descriptors == 1 && chain.more.1 == 0 && chain.first.len as usize >= least;
        let loan = |&Chain { id, first: Piece { start, len }, .. }: &Chain| Loan {
            number: id.into(),
            // SAFETY: inside the piece, which is long enough.
            start: unsafe { start.add(header) },
            headroom: header,
            size: len as usize - header,
        };
        // SAFETY: the pieces are the guest's, in memory that the term was begun with. The ring gives no id twice before it
        // is given back, and ids are below the ring's size.
        let lent = unsafe { loans.lend(chains.iter().take_while(fits).map(loan)) };
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
            let others = burst.iter().take_while(|packet| !self.own(packet, to)).count();
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

    /// Whether a packet lies in a buffer that is lent now, and the guest can have it as it is.
    fn own(&self, packet: &Packet, to: &To) -> bool {
        self.lent.number(packet).is_some() && to.has_as_is(packet)
    }

    /// Gives the packets at the front that are the guest's own back to it.
    #[inline(always)]
    fn give<const HEADER: usize>(&mut self, ring: &mut impl Virtqueue, to: &To, burst: &mut Burst, sent: &mut Sent) {
        let settling = self.lent.settle(burst, |packet| to.has_as_is(packet));
        let (own, verdicts, mut bytes) = (settling.len(), to.verdicts(), 0);
        if own == 0 {
            return;
        }
        ring.give_all(settling.map(|packet| {
            bytes += packet.len;
            Used { id: packet.number as u16, descriptors: 1, written: front::<HEADER>(packet, verdicts) }
        }));
        self.count -= own;
        (sent.lent, sent.mapped, sent.bytes) = (sent.lent + own, sent.mapped + own, sent.bytes + bytes);
        sent.call |= ring.publish();
    }
}

/// Puts the header at the start of a lent packet's buffer and the frame behind it, where it mostly is: only a frame that
/// was cut at its front (decapsulated) has to move. Returns the length of both.
#[inline(always)]
fn front<const HEADER: usize>(Settled { start, headroom, len, flags, .. }: Settled, verdicts: Flags) -> u32 {
    // SAFETY: the packet keeps to its buffer, which was lent with a headroom of a header. Header and frame are no longer
    // than all of that. It is the guest's, who may change it meanwhile; no reference to it is left.
    unsafe {
        let buffer = start.as_ptr().sub(headroom);
        if headroom != HEADER {
            std::ptr::copy(start.as_ptr(), buffer.add(HEADER), len);
        }
        write_header::<HEADER>(buffer, flags.any(verdicts));
    }
    (HEADER + len) as u32
}
