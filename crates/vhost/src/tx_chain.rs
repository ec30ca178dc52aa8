//! Frames to the guest that are not plain: in several packets, pieces or chains, or with a header that says something.

use ringpass_memory::{Flags, Packet};
use ringpass_virtio::device::{Access, Piece, Taken, Virtqueue};
use ringpass_virtio::net_header;

use crate::agreed::Agreed;
use crate::bytes::{Cursor, pieces, total};
use crate::fault::Fault;
use crate::rx_chain::passes;

/// How such a frame is sent.
pub(crate) struct Special<'a> {
    pub(crate) agreed: &'a Agreed,
    /// Longest frame without a VLAN tag.
    pub(crate) longest: usize,
    /// Descriptors of the ring.
    pub(crate) size: usize,
    /// The packet is the first of its burst: it has had the whole budget.
    pub(crate) alone: bool,
}

/// What became of it.
pub(crate) enum Outcome {
    /// So many bytes of frame went into so many chains.
    Sent { bytes: usize, chains: usize },
    /// There are too few chains just now.
    Later,
    /// This guest never gets it.
    Never,
}

impl Special<'_> {
    /// Sends a packet in chains from `first` of `taken` on, and in those that are taken on top.
    #[cold]
    #[inline(never)]
    pub(crate) fn send<Q: Virtqueue>(
        &self,
        ring: &mut Q,
        packet: &Packet,
        taken: &mut Taken,
        first: usize,
    ) -> Result<Outcome, Fault> {
        let len = packet.total_len();
        if !self.sendable(packet, len) {
            return Ok(Outcome::Never);
        }
        let need = self.agreed.header + len;
        let (mut room, mut chains) = (0, 0);
        while room < need {
            // Chains hold a descriptor each at least.
            if chains == self.size {
                return Ok(Outcome::Never);
            }
            if first + chains == taken.chains.len() && ring.take(Access::Write, 1, taken)? == 0 {
                // What does not fit into all that a burst may read never will.
                return Ok(if self.alone && taken.is_spent() { Outcome::Never } else { Outcome::Later });
            }
            let here = total(&taken.chains[first + chains], &taken.pieces);
            if here < self.agreed.header {
                return Err(Fault::NoHeader(here));
            }
            (room, chains) = (room + here, chains + 1);
            if room < need && !self.agreed.merge {
                return Ok(Outcome::Never);
            }
        }
        self.write(packet, taken, first, chains);
        let mut left = need;
        ring.give_all(taken.chains[first..first + chains].iter().map(|chain| {
            let here = total(chain, &taken.pieces).min(left);
            left -= here;
            chain.used(here as u32)
        }));
        Ok(Outcome::Sent { bytes: len, chains })
    }

    /// Whether a packet can ever be sent.
    fn sendable(&self, packet: &Packet, len: usize) -> bool {
        // What the guest does not take over was done in software before, but for what waited when the guest changed.
        let undone = Flags::VLAN | Flags::L3_CHECKSUM | Flags::CHECKSUM | Flags::TSO;
        !packet.flags().any(undone.without(self.agreed.takes.requests())) && passes(packet, len, self.longest)
    }

    /// Writes header and frame to these chains, which have room for them.
    fn write(&self, packet: &Packet, taken: &Taken, first: usize, chains: usize) {
        let header = self.header(packet, chains as u16);
        let all = taken.chains[first..first + chains].iter();
        let all = all.flat_map(|chain| pieces(chain, &taken.pieces));
        // SAFETY: pieces of chains that the ring holds are mapped (`Virtqueue`), and the caller has borrowed it.
        let mut cursor: Cursor<_> = unsafe { Cursor::new(all.filter(|piece: &Piece| piece.len > 0)) };
        cursor.write(&header[..self.agreed.header]);
        for segment in packet.segments() {
            cursor.write(segment);
        }
    }

    /// The header, with the number of chains (5.1.6.4.1).
    fn header(&self, packet: &Packet, chains: u16) -> [u8; net_header::LEN + 2] {
        const GSO_ECN: u8 = 0x80;
        const CWR: u8 = 0x80;
        let mut header = [0; net_header::LEN + 2];
        if self.agreed.takes.requests() != Flags::default() {
            header[..net_header::LEN].copy_from_slice(&net_header::encode(packet));
        }
        if self.agreed.ecn
            && let Some(headers) = packet.headers().filter(|_| packet.mss().is_some())
            && packet.array(headers.l4_start() + 13).is_some_and(|[flags]| flags & CWR != 0)
        {
            header[1] |= GSO_ECN;
        }
        header[net_header::LEN..].copy_from_slice(&chains.to_le_bytes());
        header
    }
}
