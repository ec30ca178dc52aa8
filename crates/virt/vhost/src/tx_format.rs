//! How frames are written to the chains of a guest.

use ringpass_memory::{Flags, Packet};
use ringpass_virtio::device::{Chain, ChainBatch, DeviceAccess, Virtqueue};
use ringpass_virtio::net_header;

use crate::bytes::copy;
use crate::fault::Fault;
use crate::negotiated::{GuestOffloads, MIN_FRAME_LEN, Negotiated};
use crate::tx_chain::{Outcome, SlowTx};

/// Result of sending a burst.
#[derive(Default)]
pub(crate) struct Sent {
    /// Packets at the front of the burst that were copied or dropped, and are still to be discarded.
    pub(crate) done: usize,
    /// Packets that have already left the burst, because their buffers or copies of them went to the guest.
    pub(crate) lent: usize,
    /// Packets counted in `lent` that were not copied.
    pub(crate) mapped: usize,
    /// Packets counted in `done` or `lent` that could not be sent.
    pub(crate) drops: usize,
    pub(crate) bytes: usize,
    /// The guest wants to be interrupted.
    pub(crate) call: bool,
}

/// Format of frames to the guest.
pub(crate) struct TxFormat {
    pub(crate) negotiated: Negotiated,
    /// Longest frame in bytes, without a VLAN tag.
    pub(crate) longest: usize,
    /// Number of descriptors of the ring.
    pub(crate) size: usize,
    /// Mask that is applied to the lengths of copies.
    pub(crate) copied: usize,
}

/// Flags of packets that need more than a copy behind a header.
const SLOW_PATH: Flags = Flags::CHAINED.or(Flags::VLAN).or(Flags::CHECKSUM).or(Flags::L3_CHECKSUM).or(Flags::TSO);

impl TxFormat {
    /// Takes chains, copies frames into them and returns the chains to the guest.
    pub(crate) fn send<Q: Virtqueue>(
        &self,
        ring: &mut Q,
        taken: &mut ChainBatch,
        packets: &[Packet],
        sent: &mut Sent,
    ) -> Result<(), Fault> {
        taken.clear();
        let enough = ring.take(DeviceAccess::Write, packets.len(), taken)? == packets.len();
        let (mut used, mut result) = (0, Ok(()));
        loop {
            let (rest, chains) = (&packets[sent.done..], &taken.chains[used..]);
            let (run, bytes) = if self.negotiated.header == net_header::LEN {
                self.copy_run::<{ net_header::LEN }>(rest, chains)
            } else {
                self.copy_run::<{ net_header::LEN + 2 }>(rest, chains)
            };
            let given = chains[..run].iter().zip(rest);
            ring.push_used(given.map(|(chain, packet)| chain.used((self.negotiated.header + packet.len()) as u32)));
            (sent.done, used, sent.bytes) = (sent.done + run, used + run, sent.bytes + bytes);
            let Some(packet) = packets.get(sent.done) else { break };
            if used == taken.chains.len() {
                // Frames in several chains may have used up the chains meant for other frames.
                match enough.then(|| ring.take(DeviceAccess::Write, packets.len() - sent.done, taken)) {
                    None | Some(Ok(0)) => break,
                    Some(Ok(_)) => continue,
                    Some(Err(broken)) => {
                        result = Err(broken.into());
                        break;
                    }
                }
            }
            let first_in_burst = sent.done + sent.lent == 0;
            let special =
                SlowTx { negotiated: &self.negotiated, longest: self.longest, size: self.size, first_in_burst };
            match special.send(ring, packet, taken, used) {
                Ok(Outcome::Sent { bytes, chains }) => (used, sent.bytes) = (used + chains, sent.bytes + bytes),
                Ok(Outcome::Undeliverable) => sent.drops += 1,
                Ok(Outcome::Retry) => break,
                Err(fault) => {
                    result = Err(fault);
                    break;
                }
            }
            sent.done += 1;
        }
        let left = taken.chains.len() - used;
        ring.put_back(taken, left);
        sent.call |= used > 0 && ring.publish();
        result
    }

    /// Returns whether a packet needs only a header and a copy.
    #[inline(always)]
    pub(crate) fn is_plain(&self, packet: &Packet) -> bool {
        !packet.flags().any(SLOW_PATH) && self.passes(packet.len())
    }

    /// Returns whether the guest may receive a frame of this length.
    #[inline(always)]
    fn passes(&self, len: usize) -> bool {
        len.wrapping_sub(MIN_FRAME_LEN) <= self.longest.wrapping_sub(MIN_FRAME_LEN)
    }

    /// Returns the verdicts on a frame that the guest wants to be told.
    #[inline(always)]
    pub(crate) fn verdicts(&self) -> Flags {
        if self.negotiated.guest_offloads == GuestOffloads::Plain { Flags::default() } else { Flags::L4_GOOD }
    }

    /// Copies plain packets, each into the first piece of a chain, up to the first packet that is not plain
    /// or does not fit. Returns the number of packets and of their bytes.
    #[inline(always)]
    fn copy_run<const HEADER: usize>(&self, packets: &[Packet], chains: &[Chain]) -> (usize, usize) {
        let verdicts = self.verdicts();
        let (mut run, mut bytes) = (0, 0);
        for (packet, chain) in packets.iter().zip(chains) {
            let len = packet.len();
            let room = chain.first.len as usize;
            if !self.is_plain(packet) || HEADER + len > room {
                break;
            }
            let known = packet.flags().any(verdicts);
            let to = chain.first.start.as_ptr();
            // SAFETY: the first piece has at least `HEADER + len` bytes (checked above) and is mapped by the
            // contract of `Virtqueue`, as the ring stays borrowed. No reference to guest memory exists. The packet
            // may itself lie in a lent buffer: `copy` allows source and destination to overlap.
            unsafe {
                write_header::<HEADER>(to, known);
                copy(packet.as_ptr(), to.add(HEADER), len & self.copied);
            }
            run += 1;
            bytes += len;
        }
        (run, bytes)
    }
}

/// Writes the virtio-net header of a frame that lies in one buffer and requests no offload.
///
/// # Safety
/// `to` must be valid for writes of `HEADER` bytes, and `HEADER` must be 10 or 12.
#[inline(always)]
pub(crate) unsafe fn write_header<const HEADER: usize>(to: *mut u8, valid: bool) {
    const DATA_VALID: u64 = 2;
    // SAFETY: `to` is valid for writes of `HEADER` bytes by this function's contract; the stores cover bytes
    // 0 to 9 or 0 to 11.
    unsafe {
        to.cast::<u64>().write_unaligned(if valid { DATA_VALID } else { 0 });
        if HEADER == net_header::LEN {
            to.add(8).cast::<u16>().write_unaligned(0);
        } else {
            // `num_buffers` is 1.
            to.add(8).cast::<u32>().write_unaligned(1 << 16);
        }
    }
}
