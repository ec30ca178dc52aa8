//! The pieces of a packet, each of which a descriptor names.

use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::{DmaArray, Packet};

use super::{Access, Config};
use crate::layout::flags;

/// A descriptor: two words that device and driver both access.
pub(super) type Descriptor = [AtomicU64; 2];

/// Bytes that a device reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
}

/// How a packet is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    access: Access,
    /// Bytes at the start that are a piece of their own.
    header: usize,
    /// Bytes at the end that the device writes.
    written: usize,
}

impl Cut {
    /// Segment by segment, the header apart if so configured.
    pub(super) fn segments(access: Access, config: &Config) -> Self {
        Self { access, header: config.header.into(), written: 0 }
    }

    /// A request with its answer, in one buffer.
    pub(super) fn request(packet: &Packet, written: usize) -> Self {
        Self { access: Access::Read, header: packet.len().saturating_sub(written), written }
    }

    /// The pieces of a packet. None is empty.
    pub(super) fn pieces(self, packet: &Packet) -> impl Iterator<Item = Piece> {
        let header = self.header.min(packet.len());
        let tail = if self.written > 0 { flags::WRITE } else { self.access.flags() };
        let piece = |address, len: usize, flags| Piece { address, len: len as u32, flags };
        let first = piece(packet.iova(), header, self.access.flags());
        let second = piece(packet.iova() + header as u64, packet.len() - header, tail);
        let rest = packet.segments().skip(1).map(move |part| piece(part.iova(), part.len(), tail));
        [first, second].into_iter().chain(rest).filter(|piece| piece.len > 0)
    }
}

/// Whose tables: in split rings the entries are chained, in packed ones they follow each other, with the flags elsewhere.
#[derive(Clone, Copy)]
pub(super) enum Ring {
    Split,
    Packed,
}

/// Indirect tables, one for each descriptor of a ring (2.7.5.3, 2.8.8).
pub(super) struct Tables {
    descriptors: DmaArray<Descriptor>,
    each: usize,
}

impl Tables {
    /// Bytes of memory, 16-byte aligned.
    pub(super) fn bytes(config: &Config) -> usize {
        usize::from(config.size) * usize::from(config.indirect) * size_of::<Descriptor>()
    }

    pub(super) fn new(descriptors: DmaArray<Descriptor>, config: &Config) -> Self {
        Self { descriptors, each: config.indirect.into() }
    }

    /// Writes a packet's pieces to the table of descriptor `number`; `None` if there are more than it has room for.
    /// Returns the piece that names the table.
    pub(super) fn fill(&self, number: usize, cut: Cut, packet: &Packet, ring: Ring) -> Option<Piece> {
        let count = cut.pieces(packet).count();
        let table = self.descriptors.get(number * self.each..(number + 1) * self.each)?.get(..count)?;
        for (at, (entry, piece)) in table.iter().zip(cut.pieces(packet)).enumerate() {
            let word = u64::from(piece.len)
                | match ring {
                    Ring::Packed => u64::from(piece.flags) << 48,
                    Ring::Split if at + 1 == count => u64::from(piece.flags) << 32,
                    Ring::Split => u64::from(piece.flags | flags::NEXT) << 32 | (at as u64 + 1) << 48,
                };
            entry[0].store(piece.address, Ordering::Relaxed);
            entry[1].store(word, Ordering::Relaxed);
        }
        let bytes = size_of::<Descriptor>();
        let address = self.descriptors.iova() + (number * self.each * bytes) as u64;
        Some(Piece { address, len: (count * bytes) as u32, flags: flags::INDIRECT })
    }
}
