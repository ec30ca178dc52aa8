//! Service chains: what this guest sends is copied straight into the buffers of the next one, which lends them. One copy
//! from guest to guest, instead of two.

use std::sync::Arc;

use ringpass_memory::{Borrower, Burst, Flags, ForeignMemory, Grant, Lending};
use ringpass_virtio::device::Chain;

use crate::agreed::{Agreed, SHORTEST};
use crate::bytes::copy;
use crate::rx::{Received, Receiver, says_something};

/// Who copies needs no access of a device's to the next guest's memory.
struct ByCopy;

impl Grant for ByCopy {
    fn grant(&self, _: &Arc<ForeignMemory>) -> Result<(), String> {
        Ok(())
    }

    fn revoke(&self, _: &Arc<ForeignMemory>) {}
}

impl Receiver {
    /// Receives into what is lent from now on.
    pub(crate) fn chain_to(&mut self, lending: &Arc<Lending>) -> Result<(), String> {
        self.next = Some(Borrower::new(lending, Box::new(ByCopy), SHORTEST + self.span)?);
        Ok(())
    }

    /// Copies frames to the next guest, up to the first that is not plain, or until that lends no more. Returns how many.
    #[inline]
    pub(crate) fn copy_to_next(&mut self, agreed: &Agreed, burst: &mut Burst, received: &mut Received) -> usize {
        let Self { next: Some(next), taken, span, copying, .. } = self else { return 0 };
        if next.changed() {
            next.renew();
        }
        let (header, tells) = (agreed.header, agreed.tells.is_some());
        let plain = |chain: &&Chain| {
            let len = (chain.first.len as usize).wrapping_sub(header);
            // SAFETY: longer than a header, and mapped (`Virtqueue`) as long as the ring is borrowed.
            let silent = || !(tells && unsafe { says_something(chain.first.start.as_ptr()) });
            chain.more.1 == 0 && len.wrapping_sub(SHORTEST) <= *span && silent()
        };
        let run = taken.chains.iter().take_while(plain).count();
        let (mut done, copied) = (0, copying.mask());
        loop {
            let before = done;
            for (chain, buffer) in taken.chains[before..run].iter().zip(next.borrow(run - before)) {
                let len = chain.first.len as usize - header;
                // SAFETY: `len` bytes are behind the header in this guest's piece, and fit into every buffer that is lent:
                // they were asked for with `SHORTEST + span` bytes or more.
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
