//! The pieces of a packet, each of which takes a descriptor.

use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::{DmaArray, Packet};

use super::{Config, DeviceAccess};
use crate::layout::flags;

/// A descriptor: two words that device and driver both access.
pub(super) type Descriptor = [AtomicU64; 2];

/// A contiguous piece of memory that a device reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
}

/// How a packet is divided into pieces.
#[derive(Clone, Copy)]
pub(super) struct PieceLayout {
    access: DeviceAccess,
    /// Bytes at the start that form a piece of their own.
    header: usize,
    /// Bytes at the end that the device writes.
    written: usize,
}

impl PieceLayout {
    /// Divides a packet into its segments, with a separate header if so configured.
    pub(super) fn segments(access: DeviceAccess, config: &Config) -> Self {
        Self { access, header: config.header.into(), written: 0 }
    }

    /// Divides a buffer into a request and its answer of `written` bytes.
    pub(super) fn request(packet: &Packet, written: usize) -> Self {
        Self { access: DeviceAccess::Read, header: packet.len().saturating_sub(written), written }
    }

    /// Returns the pieces of a packet. None is empty.
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

/// Format of the ring that a table belongs to. Entries of split rings are chained; those of packed rings are
/// consecutive and have their flags at another position.
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
    /// Returns the memory that the tables need, in bytes. It must be aligned to 16 bytes.
    pub(super) fn bytes(config: &Config) -> usize {
        usize::from(config.size) * usize::from(config.indirect) * size_of::<Descriptor>()
    }

    pub(super) fn new(descriptors: DmaArray<Descriptor>, config: &Config) -> Self {
        Self { descriptors, each: config.indirect.into() }
    }

    /// Writes a packet's pieces to the table of descriptor `number` and returns the piece that refers to the
    /// table; `None` if the table is too small.
    pub(super) fn fill(&self, number: usize, cut: PieceLayout, packet: &Packet, ring: Ring) -> Option<Piece> {
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
