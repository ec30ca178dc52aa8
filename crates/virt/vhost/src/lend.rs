//! Rx queue mapping: lends buffers that the guest has made available to the Rx queue of a NIC, which writes
//! frames directly into them. Sending such a packet to the guest only returns its buffer: nothing is copied.

use ringpass_memory::{Burst, Completion, Flags, Loan, Loans, MAGAZINE, Packet};
use ringpass_port::lending::Lease;
use ringpass_virtio::device::{Chain, ChainBatch, DeviceAccess, Piece, Used, Virtqueue};
use ringpass_virtio::net_header;

use crate::fault::Fault;
use crate::negotiated::Negotiated;
use crate::tx_format::{Sent, TxFormat, write_header};

/// Lending state of a virtqueue.
pub(crate) struct LentQueue {
    pub(crate) lent: Lease,
    /// Number of chains lent now, and its upper limit.
    count: usize,
    most: usize,
    taken: ChainBatch,
}

impl LentQueue {
    /// Creates the lending state of a ring with `size` descriptors.
    pub(crate) fn new(lent: Lease, size: usize) -> Self {
        // A quarter of the ring stays for frames from elsewhere, which are copied: a NIC that receives nothing
        // keeps the buffers that it has.
        let most = size - size / 4;
        Self { lent, count: 0, most, taken: ChainBatch::with_capacity(MAGAZINE) }
    }

    /// Lends available chains, up to the first one that a NIC cannot use because it has several pieces or is
    /// too short. Chains that are not lent stay available for frames that are copied.
    pub(crate) fn lend(
        &mut self,
        ring: &mut impl Virtqueue,
        negotiated: &Negotiated,
        loans: &mut Loans<'_>,
    ) -> Result<(), Fault> {
        // The budget allows one descriptor per chain: a longer chain ends the search.
        let most = loans.room().min(self.most - self.count);
        self.taken.begin(most);
        ring.take(DeviceAccess::Write, most, &mut self.taken)?;
        let (header, chains) = (negotiated.header, &self.taken.chains);
        let least = header + loans.least();
        let fits = |chain: &&Chain| chain.descriptors == 1 && chain.more.1 == 0 && chain.first.len as usize >= least;
        let loan = |&Chain { id, first: Piece { start, len }, .. }: &Chain| Loan {
            number: id.into(),
            // SAFETY: `loans.lend` sees only chains that passed `fits`, whose piece has at least `header` bytes.
            start: unsafe { start.add(header) },
            headroom: header,
            size: len as usize - header,
        };
        // SAFETY: the ring hands out no id twice before it is returned. The pieces, with the header in front of
        // `start`, lie in the memory that the lease was begun with (`Backend::map`), because `Backend::set_memory`
        // ends the lease before it changes the ring's memory. `fits` checked that they have the least size. The chains are lent out of `taken`, so nothing else in this process uses
        // them until they are completed or the lease has ended.
        let lent = unsafe { loans.lend(chains.iter().take_while(fits).map(loan)) };
        self.count += lent;
        let rest = chains.len() - lent;
        ring.put_back(&mut self.taken, rest);
        Ok(())
    }

    /// Sends a burst: returns the guest's own buffers to it and copies other packets.
    pub(crate) fn send(
        &mut self,
        ring: &mut impl Virtqueue,
        to: &TxFormat,
        (taken, burst): (&mut ChainBatch, &mut Burst),
        sent: &mut Sent,
    ) -> Result<(), Fault> {
        loop {
            if to.negotiated.header == net_header::LEN {
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

    /// Returns whether a packet lies in a buffer that is lent now and needs no changes for the guest.
    fn own(&self, packet: &Packet, to: &TxFormat) -> bool {
        self.lent.can_complete(packet) && to.is_plain(packet)
    }

    /// Returns the guest's own packets at the front of the burst to it.
    #[inline(always)]
    fn give<const HEADER: usize>(
        &mut self,
        ring: &mut impl Virtqueue,
        to: &TxFormat,
        burst: &mut Burst,
        sent: &mut Sent,
    ) {
        let settling = self.lent.complete(burst, |packet| to.is_plain(packet));
        let own = settling.len();
        let verdicts = to.verdicts();
        let mut bytes = 0;
        if own == 0 {
            return;
        }
        ring.push_used(settling.map(|packet| {
            bytes += packet.len;
            Used { id: packet.number as u16, descriptors: 1, written: front::<HEADER>(packet, verdicts) }
        }));
        self.count -= own;
        (sent.lent, sent.mapped, sent.bytes) = (sent.lent + own, sent.mapped + own, sent.bytes + bytes);
        sent.call |= ring.publish();
    }
}

/// Puts the header at the start of a lent packet's buffer and the frame right behind it. The frame is usually
/// there already; only a frame whose start has moved, for example by decapsulation, must be moved. Returns
/// the length of header and frame.
#[inline(always)]
fn front<const HEADER: usize>(Completion { start, headroom, len, flags, .. }: Completion, verdicts: Flags) -> u32 {
    // SAFETY: a packet stays within its buffer, which was lent with a headroom of a header
    // (`LentQueue::lend`), so `start - headroom` is the start of that buffer. Header and frame fit into it:
    // `Lease::complete` gives only frames that are no longer than what was lent behind the header. The lease keeps
    // the memory mapped. The guest may change it at any time, and no reference to it exists.
    unsafe {
        let buffer = start.as_ptr().sub(headroom);
        if headroom != HEADER {
            std::ptr::copy(start.as_ptr(), buffer.add(HEADER), len);
        }
        write_header::<HEADER>(buffer, flags.any(verdicts));
    }
    (HEADER + len) as u32
}
