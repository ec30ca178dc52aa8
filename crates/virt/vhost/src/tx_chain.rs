//! Slow path for frames to the guest: in several segments, pieces or chains, or with a header that carries
//! offloads.

use ringpass_memory::{Flags, Packet};
use ringpass_virtio::device::{ChainBatch, DeviceAccess, Piece, Virtqueue};
use ringpass_virtio::net_header;

use crate::bytes::{Cursor, pieces, total};
use crate::fault::Fault;
use crate::negotiated::Negotiated;
use crate::rx_chain::passes;

/// Parameters of the slow path.
pub(crate) struct SlowTx<'a> {
    pub(crate) negotiated: &'a Negotiated,
    /// Longest frame in bytes, without a VLAN tag.
    pub(crate) longest: usize,
    /// Number of descriptors of the ring.
    pub(crate) size: usize,
    /// Whether the packet is the first of its burst and so has the whole descriptor budget.
    pub(crate) first_in_burst: bool,
}

/// Result of sending a packet.
pub(crate) enum Outcome {
    /// `bytes` of the frame were written to `chains` chains.
    Sent { bytes: usize, chains: usize },
    /// There are too few chains at the moment.
    Retry,
    /// The guest can never receive this packet.
    Undeliverable,
}

impl SlowTx<'_> {
    /// Sends a packet in the chains of `taken` from index `first` on, and takes more chains as needed.
    #[cold]
    #[inline(never)]
    pub(crate) fn send<Q: Virtqueue>(
        &self,
        ring: &mut Q,
        packet: &Packet,
        taken: &mut ChainBatch,
        first: usize,
    ) -> Result<Outcome, Fault> {
        let len = packet.total_len();
        if !self.sendable(packet, len) {
            return Ok(Outcome::Undeliverable);
        }
        let need = self.negotiated.header + len;
        let (mut room, mut chains) = (0, 0);
        while room < need {
            // Each chain holds at least one descriptor, so the ring has no more chains than this.
            if chains == self.size {
                return Ok(Outcome::Undeliverable);
            }
            if first + chains == taken.chains.len() && ring.take(DeviceAccess::Write, 1, taken)? == 0 {
                // A frame that does not fit into all that a burst may read will never fit.
                return Ok(if self.first_in_burst && taken.is_spent() {
                    Outcome::Undeliverable
                } else {
                    Outcome::Retry
                });
            }
            let here = total(&taken.chains[first + chains], &taken.pieces);
            if here < self.negotiated.header {
                return Err(Fault::NoHeader(here));
            }
            (room, chains) = (room + here, chains + 1);
            if room < need && !self.negotiated.merge {
                return Ok(Outcome::Undeliverable);
            }
        }
        self.write(packet, taken, first, chains);
        let mut left = need;
        ring.push_used(taken.chains[first..first + chains].iter().map(|chain| {
            let here = total(chain, &taken.pieces).min(left);
            left -= here;
            chain.used(here as u32)
        }));
        Ok(Outcome::Sent { bytes: len, chains })
    }

    /// Returns whether a packet can ever be sent.
    fn sendable(&self, packet: &Packet, len: usize) -> bool {
        // `SoftwareOffload` has carried out what the guest does not accept, except for packets that were already
        // queued when the guest changed.
        let undone = Flags::VLAN | Flags::L3_CHECKSUM | Flags::CHECKSUM | Flags::TSO;
        !packet.flags().any(undone.without(self.negotiated.guest_offloads.requests()))
            && passes(packet, len, self.longest)
    }

    /// Writes header and frame to `chains` chains, which must have room for them.
    fn write(&self, packet: &Packet, taken: &ChainBatch, first: usize, chains: usize) {
        let header = self.header(packet, chains as u16);
        let all = taken.chains[first..first + chains].iter();
        let all = all.flat_map(|chain| pieces(chain, &taken.pieces));
        // SAFETY: the ring holds the chains, so their pieces are mapped by the contract of `Virtqueue`; the
        // caller keeps the ring borrowed until this function returns.
        let mut cursor: Cursor<_> = unsafe { Cursor::new(all.filter(|piece: &Piece| piece.len > 0)) };
        cursor.write(&header[..self.negotiated.header]);
        for segment in packet.segments() {
            cursor.write(segment);
        }
    }

    /// Builds the header, with the number of chains in `num_buffers` (5.1.6.4.1).
    fn header(&self, packet: &Packet, chains: u16) -> [u8; net_header::LEN + 2] {
        const GSO_ECN: u8 = 0x80;
        const CWR: u8 = 0x80;
        let mut header = [0; net_header::LEN + 2];
        if self.negotiated.guest_offloads.requests() != Flags::default() {
            header[..net_header::LEN].copy_from_slice(&net_header::encode(packet));
        }
        if self.negotiated.ecn
            && let Some(headers) = packet.headers().filter(|_| packet.mss().is_some())
            && packet.array(headers.l4_start() + 13).is_some_and(|[flags]| flags & CWR != 0)
        {
            header[1] |= GSO_ECN;
        }
        header[net_header::LEN..].copy_from_slice(&chains.to_le_bytes());
        header
    }
}
