//! Service chains: frames that this guest sends are copied straight into buffers that the next guest lends.
//! This takes one copy from guest to guest instead of two.

use std::sync::Arc;

use ringpass_memory::{Burst, Flags, ForeignMemory};
use ringpass_port::lending::{Borrower, Grant, Lending};
use ringpass_virtio::device::Chain;

use crate::bytes::copy;
use crate::negotiated::{MIN_FRAME_LEN, Negotiated};
use crate::rx::{Received, Receiver, requests_offload};

/// A [`Grant`] that does nothing: copies by the CPU need no device access to the next guest's memory.
struct NoopGrant;

impl Grant for NoopGrant {
    fn grant(&self, _: &Arc<ForeignMemory>) -> Result<(), String> {
        Ok(())
    }

    fn revoke(&self, _: &Arc<ForeignMemory>) {}
}

impl Receiver {
    /// Makes the queue receive into the buffers of `lending` from now on.
    pub(crate) fn chain_to(&mut self, lending: &Arc<Lending>) -> Result<(), String> {
        self.next = Some(Borrower::new(lending, Box::new(NoopGrant), MIN_FRAME_LEN + self.span)?);
        Ok(())
    }

    /// Copies frames to the next guest's buffers, up to the first frame that is not plain or until no buffer
    /// is left. Returns the number of frames copied.
    #[inline]
    pub(crate) fn copy_to_next(
        &mut self,
        negotiated: &Negotiated,
        burst: &mut Burst,
        received: &mut Received,
    ) -> usize {
        let Self { next: Some(next), taken, span, copying, .. } = self else { return 0 };
        if next.changed() {
            next.renew();
        }
        let (header, host_offloads) = (negotiated.header, negotiated.host_offloads.is_some());
        let plain = |chain: &&Chain| {
            let len = (chain.first.len as usize).wrapping_sub(header);
            // SAFETY: `silent` runs only if `first.len` is at least a header and `MIN_FRAME_LEN` bytes. The piece
            // is mapped by the contract of `Virtqueue`, as the ring stays borrowed and so keeps its memory.
            let silent = || !(host_offloads && unsafe { requests_offload(chain.first.start.as_ptr()) });
            chain.more.1 == 0 && len.wrapping_sub(MIN_FRAME_LEN) <= *span && silent()
        };
        let run = taken.chains.iter().take_while(plain).count();
        let (mut done, copied) = (0, copying.mask());
        loop {
            let before = done;
            for (chain, buffer) in taken.chains[before..run].iter().zip(next.borrow(run - before)) {
                let len = chain.first.len as usize - header;
                // SAFETY: the chain is one of `run`, so its first piece has `len` bytes behind the header, with
                // `len <= MIN_FRAME_LEN + span`. Every lent buffer has at least that size, because `chain_to`
                // asked for it.
                let packet = unsafe {
                    let mut packet = buffer.into_packet(len);
                    copy(chain.first.start.as_ptr().add(header), packet.as_ptr(), len & copied);
                    packet.add_flags(Flags::LENT);
                    packet
                };
                burst.push(packet);
                received.bytes += len;
                done += 1;
            }
            if done == before {
                return done;
            }
        }
    }
}
