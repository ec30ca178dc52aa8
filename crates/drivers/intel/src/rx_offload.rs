//! Metadata of received frames, and frames that lie in several buffers (section 7.1.6.2).

use ringpass_memory::{Assembly, Flags, Packet};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::Offloads;

use crate::device::{QueueContext, RxErrors};
use crate::frame::{ETHERNET_HEADER, OVERHEAD};

/// Joins buffers into frames. Holds the buffers of a frame whose last one has not arrived yet.
pub(crate) struct FrameAssembler {
    metadata: Metadata,
    errors: RxErrors,
    pieces: Assembly,
    /// The current frame is faulty: its remaining buffers are dropped.
    faulty: bool,
}

impl FrameAssembler {
    /// Creates the assembler of a queue with buffers of `capacity` bytes; `None` if the queue has no offloads
    /// and each frame fits into one buffer.
    pub(crate) fn new(context: QueueContext, capacity: usize) -> Option<Box<Self>> {
        let offloads = context.config.offloads;
        let longest = context.config.mtu + OVERHEAD;
        let errors = context.device.rx_errors;
        let pieces = || Assembly::new(longest, capacity);
        (offloads.any() || longest > capacity)
            .then(|| Box::new(Self { metadata: Metadata::new(offloads), errors, pieces: pieces(), faulty: false }))
    }

    /// Returns whether the next buffer starts a frame.
    pub(crate) fn is_between(&self) -> bool {
        self.pieces.is_empty() && !self.faulty
    }

    /// Adds a buffer with the two words of its write-back. Returns the frame when it is complete, `Err` at the
    /// end of a faulty one.
    #[inline(never)]
    pub(crate) fn add(&mut self, mut piece: Packet, words: [u64; 2]) -> Result<Option<Packet>, ()> {
        let ends = words[1] & RX_EOP != 0;
        if !self.pieces.is_empty() {
            piece.clear_flags(piece.flags());
        }
        self.faulty |= piece.is_empty();
        if !self.faulty {
            self.faulty = !self.pieces.add(piece);
        } else {
            self.pieces.clear();
        }
        if !ends {
            return Ok(None);
        }
        let (faulty, len) = (std::mem::take(&mut self.faulty), self.pieces.len());
        match self.pieces.take() {
            Some(mut packet) if !faulty && words[1] & self.errors.mac == 0 && len >= ETHERNET_HEADER => {
                self.set_metadata(&mut packet, words);
                Ok(Some(packet))
            }
            _ => Err(()),
        }
    }

    /// Sets a frame's flags and metadata from its last descriptor, the only one in which status and errors are
    /// valid.
    #[inline(always)]
    pub(crate) fn set_metadata(&self, packet: &mut Packet, [hash, status]: [u64; 2]) {
        let verdict = |checked, wrong, good, bad| match (status & checked != 0, status & wrong != 0) {
            (false, _) => Flags::default(),
            (true, false) => good,
            (true, true) => bad,
        };
        let l3 = verdict(self.metadata.l3_checked, self.errors.l3, Flags::L3_GOOD, Flags::L3_BAD);
        let l4 = verdict(self.metadata.l4_checked, self.errors.l4, Flags::L4_GOOD, Flags::L4_BAD);
        packet.add_flags(l3 | l4);
        if hash & self.metadata.hashed != 0 {
            packet.set_rss_hash((hash >> 32) as u32);
        }
        if status & self.metadata.tagged != 0 {
            packet.set_vlan((status >> RX_VLAN_SHIFT) as u16);
        }
    }
}

/// Bits of a written-back descriptor that say what is known of a frame; none of what the port was not asked for.
struct Metadata {
    l3_checked: u64,
    l4_checked: u64,
    hashed: u64,
    tagged: u64,
}

impl Metadata {
    fn new(offloads: Offloads) -> Self {
        let bits = |asked: bool, bits: u64| if asked { bits } else { 0 };
        Self {
            l3_checked: bits(offloads.checksum, RX_IPCS),
            l4_checked: bits(offloads.checksum, RX_L4CS),
            hashed: bits(offloads.hash, RX_RSS_TYPE_MASK),
            tagged: bits(offloads.vlan, RX_VP),
        }
    }
}
