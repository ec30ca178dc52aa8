//! Rx queue mapping: buffers that the guest has made available are lent to the Rx queue of a card, which writes frames
//! where the guest wants them. Sent here, such a packet is only told to the guest: no copy.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use ringpass_memory::{Burst, Flags, Lender, Lending, Lent, Loans, MAX_BATCH, Packet};
use ringpass_virtio::device::{Access, Chain, Piece, Taken, Virtqueue};
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
    /// Chains that are lent, a bit for each id, and how many they are and may be.
    out: Box<[u64]>,
    count: usize,
    most: usize,
    taken: Taken,
    /// Chains that are given back, with the bytes in each.
    given: Vec<(Chain, u32)>,
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
        let (out, given) = (vec![0; size.div_ceil(64)].into(), Vec::with_capacity(MAX_BATCH));
        // A quarter stays for frames from elsewhere, which are copied: a card that receives nothing keeps what it has.
        let most = size - size / 4;
        Self { lent, out, count: 0, most, taken: empty(), given }
    }

    /// Lends what is available, up to the first chain that a card cannot use: one of several pieces, or too short a one.
    /// That stays for frames that are copied.
    fn lend(&mut self, ring: &mut impl Virtqueue, agreed: &Agreed, loans: &mut Loans<'_>) -> Result<(), Fault> {
        clear(&mut self.taken);
        ring.take(Access::Write, loans.room().min(self.most - self.count), &mut self.taken)?;
        let least = agreed.header + loans.least();
        let chains = &self.taken.chains;
        let usable = |chain: &&Chain| chain.descriptors == 1 && chain.more.1 == 0 && chain.first.len as usize >= least;
        let lent = chains.iter().take_while(usable).count();
        for &Chain { id, first: Piece { start, len }, .. } in &chains[..lent] {
            self.out[usize::from(id / 64)] |= 1 << (id % 64);
            // SAFETY: inside the piece, which is the guest's, in memory that the term was begun with. The ring gives no
            // id twice before it is given back, and ids are below the ring's size.
            unsafe {
                loans.lend(id.into(), start.add(agreed.header), agreed.header, len as usize - agreed.header);
            }
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
            let others = burst.iter().take_while(|packet| !self.owns(packet, to)).count();
            if others == 0 {
                return Ok(());
            }
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

    /// Whether a packet lies in a buffer that is lent now, as the guest can have it.
    #[inline]
    fn owns(&self, packet: &Packet, to: &To) -> bool {
        packet.flags().any(Flags::LENT)
            && !packet.flags().any(SPECIAL)
            && to.passes(packet.len())
            && self.lent.number(packet).is_some()
    }

    /// Gives the packets at the front that are the guest's own back to it.
    #[inline(always)]
    fn give<const HEADER: usize>(&mut self, ring: &mut impl Virtqueue, to: &To, burst: &mut Burst, sent: &mut Sent) {
        let own = burst.iter().take_while(|packet| self.owns(packet, to)).count();
        if own == 0 {
            return;
        }
        let (verdicts, mut settling) = (to.verdicts(), self.lent.settle());
        self.given.clear();
        for mut packet in burst.drain().take(own) {
            let Some(id) = self.lent.number(&packet) else { continue };
            sent.bytes += packet.len();
            let first = front::<HEADER>(&mut packet, verdicts);
            self.out[id as usize / 64] &= !(1 << (id % 64));
            self.given.push((Chain { id: id as u16, descriptors: 1, first, more: (0, 0) }, first.len));
            settling.add(packet);
        }
        self.count -= own;
        (sent.lent, sent.mapped) = (sent.lent + own, sent.mapped + own);
        ring.give_all(self.given.iter().map(|(chain, written)| (chain, *written)));
        sent.call |= ring.publish();
    }

    /// The end of lending: what is lent still, and will not come any more, goes back to the guest without a frame.
    pub(crate) fn end(self, ring: &mut impl Virtqueue) -> bool {
        let first = Piece { start: NonNull::dangling(), len: 0 };
        for (word, mut bits) in self.out.iter().copied().enumerate() {
            while bits != 0 {
                let id = (64 * word) as u16 + bits.trailing_zeros() as u16;
                ring.give(&Chain { id, descriptors: 1, first, more: (0, 0) }, 0);
                bits &= bits - 1;
            }
        }
        ring.publish()
    }
}

/// Puts the header at the start of a lent packet's buffer and the frame behind it, where it mostly is: only a frame that
/// was cut at its front (decapsulated) has to move.
#[inline(always)]
fn front<const HEADER: usize>(packet: &mut Packet, verdicts: Flags) -> Piece {
    let (headroom, frame, valid) = (packet.headroom(), packet.len(), packet.flags().any(verdicts));
    // SAFETY: the packet keeps to its buffer, which was lent with a headroom of a header. Header and frame are no longer
    // than all of that. It is the guest's, who may change it meanwhile; no reference to it is left.
    let start = unsafe {
        let start = NonNull::from(&mut **packet).cast::<u8>().sub(headroom);
        if headroom != HEADER {
            std::ptr::copy(start.as_ptr().add(headroom), start.as_ptr().add(HEADER), frame);
        }
        write_header::<HEADER>(start.as_ptr(), valid);
        start
    };
    Piece { start, len: (HEADER + frame) as u32 }
}
