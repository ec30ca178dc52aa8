//! Descriptor chains: the buffers that a driver makes available together.

use ringpass_virtio::layout::flags;

use super::fault::{Fault, NOT_MAPPED};
use ringpass_memory::{DmaMap, LookupHint};

/// Largest number of descriptors in a chain, whatever the queue size, as in QEMU (`VIRTQUEUE_MAX_SIZE`).
const MAX_CHAIN_LEN: usize = 1024;

/// Part of a buffer, from one descriptor.
#[derive(Clone, Copy)]
struct Piece {
    address: u64,
    len: u32,
}

/// A chain of descriptors.
#[derive(Default)]
pub(in super::super) struct Chain {
    /// Id by which the driver knows the chain.
    pub(super) id: u16,
    /// Descriptors that the chain takes in the ring, without those of an indirect table.
    pub(super) slots: u16,
    read: Vec<Piece>,
    write: Vec<Piece>,
    hint: LookupHint,
}

/// A descriptor as it is in memory: address, length, and two fields that differ between split and packed rings.
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

    /// Reads a descriptor of an indirect table, which need not be aligned.
    pub(super) fn read(dma: &DmaMap, address: u64, hint: &mut LookupHint) -> Result<Self, Fault> {
        let mut bytes = [0; 16];
        if !dma.read(address, &mut bytes, hint) {
            return Err(NOT_MAPPED);
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Self::new([word(0), word(8)]))
    }

    /// Returns the number of entries of the indirect table that this descriptor refers to (2.7.5.3.1, 2.8.7).
    pub(super) fn entries(&self) -> Result<u32, Fault> {
        match self.len {
            0 => Err("an indirect table of length 0"),
            len if len % 16 != 0 => Err("an indirect table whose length is not a multiple of 16"),
            len => Ok(len / 16),
        }
    }
}

impl Chain {
    pub(super) fn clear(&mut self) {
        self.read.clear();
        self.write.clear();
    }

    /// Appends a descriptor. A chain has at most as many as the queue (2.7.5.3.1), and at most
    /// [`MAX_CHAIN_LEN`]. Those that the device writes come after those that it reads (2.7.4.2).
    pub(super) fn push(&mut self, entry: Entry, flags: u16, size: u16) -> Result<(), Fault> {
        let piece = Piece { address: entry.address, len: entry.len };
        if self.read.len() + self.write.len() >= usize::from(size).min(MAX_CHAIN_LEN) {
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

    /// Returns the number of bytes that the device may read.
    pub(in super::super) fn readable(&self) -> usize {
        self.read.iter().map(|piece| piece.len as usize).sum()
    }

    /// Returns the number of bytes that the device may write.
    pub(in super::super) fn writable(&self) -> usize {
        self.write.iter().map(|piece| piece.len as usize).sum()
    }

    /// Returns the length of the first descriptor's buffer, in bytes.
    pub(in super::super) fn first_len(&self) -> usize {
        self.read.first().or(self.write.first()).map_or(0, |piece| piece.len as usize)
    }

    /// Reads all readable bytes.
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

    /// Writes to the front of the writable part, as far as there is room. Returns how many bytes.
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
