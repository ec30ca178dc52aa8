//! Buffers that a driver made available together.

use ringpass_virtio::layout::flags;

use super::{Fault, NOT_MAPPED};
use crate::dma::{DmaMap, Hint};

/// Descriptors that a chain may have, as in QEMU (`VIRTQUEUE_MAX_SIZE`), however long the queue is.
const LONGEST: usize = 1024;

/// A part of a buffer.
#[derive(Clone, Copy)]
struct Piece {
    address: u64,
    len: u32,
}

/// What the driver made available as one.
#[derive(Default)]
pub(in super::super) struct Chain {
    /// What the driver knows it by.
    pub(super) id: u16,
    /// Slots of a packed ring that it takes.
    pub(super) slots: u16,
    read: Vec<Piece>,
    write: Vec<Piece>,
    hint: Hint,
}

/// A descriptor as it lies in memory: address, length, two fields that differ from ring to ring.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) len: u32,
    /// Flags of a split descriptor, id of a packed one.
    pub(super) third: u16,
    /// Next of a split descriptor, flags of a packed one.
    pub(super) fourth: u16,
}

impl Entry {
    pub(super) fn new([address, second]: [u64; 2]) -> Self {
        Self { address, len: second as u32, third: (second >> 32) as u16, fourth: (second >> 48) as u16 }
    }

    /// From an indirect table, which needs no alignment.
    pub(super) fn read(dma: &DmaMap, address: u64, hint: &mut Hint) -> Result<Self, Fault> {
        let mut bytes = [0; 16];
        if !dma.read(address, &mut bytes, hint) {
            return Err(NOT_MAPPED);
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Self::new([word(0), word(8)]))
    }

    /// How many entries the table has that it names (2.7.5.3.1, 2.8.7).
    pub(super) fn entries(&self) -> Result<u32, Fault> {
        match self.len {
            0 => Err("an indirect table of length 0"),
            len if len % 16 != 0 => Err("an indirect table whose length is no multiple of 16"),
            len => Ok(len / 16),
        }
    }
}

impl Chain {
    pub(super) fn clear(&mut self) {
        self.read.clear();
        self.write.clear();
    }

    /// Adds a piece. A chain has at most as many as the queue has descriptors (2.7.5.3.1) and at most [`LONGEST`]; those
    /// that the device writes are behind those that it reads (2.7.4.2).
    pub(super) fn push(&mut self, entry: Entry, flags: u16, size: u16) -> Result<(), Fault> {
        let piece = Piece { address: entry.address, len: entry.len };
        if self.read.len() + self.write.len() >= usize::from(size).min(LONGEST) {
            return Err("a chain that is longer than the queue, or a loop");
        }
        if piece.len == 0 {
            return Err("a descriptor of length 0");
        }
        match flags & flags::WRITE != 0 {
            true => self.write.push(piece),
            false if self.write.is_empty() => self.read.push(piece),
            false => return Err("a descriptor to be read behind one to be written"),
        }
        Ok(())
    }

    /// Bytes to be read.
    pub(in super::super) fn readable(&self) -> usize {
        self.read.iter().map(|piece| piece.len as usize).sum()
    }

    /// Bytes to be written.
    pub(in super::super) fn writable(&self) -> usize {
        self.write.iter().map(|piece| piece.len as usize).sum()
    }

    /// Length of the first piece.
    pub(in super::super) fn first_len(&self) -> usize {
        self.read.first().or(self.write.first()).map_or(0, |piece| piece.len as usize)
    }

    /// Reads all that is to be read.
    pub(in super::super) fn read(&mut self, dma: &DmaMap, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.clear();
        for piece in &self.read {
            let at = out.len();
            out.resize(at + piece.len as usize, 0);
            if !dma.read(piece.address, &mut out[at..], &mut self.hint) {
                return Err(NOT_MAPPED);
            }
        }
        Ok(())
    }

    /// Writes to the front of what is to be written, as far as that goes. Returns how many bytes.
    pub(in super::super) fn write(&mut self, dma: &DmaMap, bytes: &[u8]) -> Result<usize, Fault> {
        let mut rest = bytes;
        for piece in &self.write {
            let (here, later) = rest.split_at(rest.len().min(piece.len as usize));
            if !here.is_empty() && !dma.write(piece.address, here, &mut self.hint) {
                return Err(NOT_MAPPED);
            }
            rest = later;
        }
        Ok(bytes.len() - rest.len())
    }
}
