//! What the card says of a received frame beside its bytes, and frames that lie in several buffers (section 7.1.6.2).

use std::sync::atomic::Ordering;

use ringpass_memory::{Assembly, Burst, Flags, Packet};
use ringpass_port::Offloads;
use ringpass_registers::ixgbe::descriptor::*;

use crate::device::Setup;
use crate::rx::{ETHERNET_HEADER, Rx};
use crate::tx::OVERHEAD;

/// Which bits of a write-back's status mean errors.
#[derive(Clone, Copy)]
pub struct RxErrors {
    /// Errors of the MAC (RXE): CRC, symbol or length.
    pub mac: u64,
    /// The checksum of the IPv4 header is wrong (IPE).
    pub l3: u64,
    /// The checksum of TCP, UDP or SCTP is wrong (L4E).
    pub l4: u64,
}

/// A frame whose end has not come yet.
pub(crate) struct Gather {
    offloads: Offloads,
    errors: RxErrors,
    pieces: Assembly,
    /// The frame is faulty; what follows up to its end is dropped.
    faulty: bool,
}

impl Gather {
    /// For a queue with buffers of `capacity` bytes; `None` if it needs nothing of this.
    pub(crate) fn new((device, config, _): Setup, capacity: usize) -> Option<Box<Self>> {
        let (offloads, longest, errors) = (config.offloads, config.mtu + OVERHEAD, device.rx_errors);
        let pieces = || Assembly::new(longest, capacity);
        (offloads.any() || longest > capacity)
            .then(|| Box::new(Self { offloads, errors, pieces: pieces(), faulty: false }))
    }

    /// Whether the next buffer begins a frame.
    fn is_between(&self) -> bool {
        self.pieces.is_empty() && !self.faulty
    }

    /// Adds a buffer with the given write-back. Returns the frame at its end, `Err` at the end of a faulty one.
    #[inline(never)]
    fn add(&mut self, mut piece: Packet, words: [u64; 2]) -> Result<Option<Packet>, ()> {
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
                self.tell(&mut packet, words);
                Ok(Some(packet))
            }
            _ => Err(()),
        }
    }

    /// Status and errors are valid in the last descriptor of a frame.
    fn tell(&self, packet: &mut Packet, [hash, status]: [u64; 2]) {
        let verdict = |checked, wrong, good, bad| match (status & checked != 0, status & wrong != 0) {
            (false, _) => Flags::default(),
            (true, false) => good,
            (true, true) => bad,
        };
        if self.offloads.checksum {
            packet.add_flags(verdict(RX_IPCS, self.errors.l3, Flags::L3_GOOD, Flags::L3_BAD));
            packet.add_flags(verdict(RX_L4CS, self.errors.l4, Flags::L4_GOOD, Flags::L4_BAD));
        }
        if self.offloads.hash && hash & RX_RSS_TYPE_MASK != 0 {
            packet.set_rss_hash((hash >> 32) as u32);
        }
        if self.offloads.vlan && status & RX_VP != 0 {
            packet.set_vlan((status >> RX_VLAN_SHIFT) as u16);
        }
    }
}

impl Rx {
    /// As `take_run`, for a queue with offloads or frames longer than a buffer: takes all that fit.
    #[inline(never)]
    pub(crate) fn take_offloaded(&mut self, burst: &mut Burst) {
        let Some(gather) = &mut self.gather else { return };
        while burst.room() > 0 && self.ring.posted() > 0 {
            let descriptor = &self.ring.descriptors[self.ring.index(self.ring.head)];
            let status = descriptor[1].load(Ordering::Acquire);
            if status & RX_DD == 0 {
                break;
            }
            let words = [descriptor[0].load(Ordering::Relaxed), status];
            let buffer = self.ring.pop();
            // A length beyond the buffer counts as none, and that as a fault.
            let len = Some((status >> RX_LENGTH_SHIFT) as u16 as usize)
                .filter(|&len| len <= self.longest + ETHERNET_HEADER)
                .unwrap_or(0);
            // SAFETY: the length was checked.
            let mut packet = unsafe { buffer.into_packet(len) };
            let whole = status & (RX_EOP | gather.errors.mac) == RX_EOP && len >= ETHERNET_HEADER;
            if whole && gather.is_between() {
                gather.tell(&mut packet, words);
                burst.push(packet);
                continue;
            }
            match gather.add(packet, words) {
                Ok(Some(packet)) => burst.push(packet),
                Ok(None) => {}
                Err(()) => drop(self.ring.device.rx_faulty.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }
}
