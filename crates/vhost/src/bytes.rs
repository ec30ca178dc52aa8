//! Copies between packets and the guest's memory, which the guest may change at any time. That memory is reached by raw
//! pointers only, never by references: nothing is assumed of it but that it is mapped, and any bytes are as good as any
//! others.

use std::ptr::NonNull;

pub(crate) use ringpass_memory::copy;
use ringpass_memory::{Packet, RawBytes};
use ringpass_virtio::device::{Chain, Piece};

/// Pieces of one chain or of several, read or written from the first to the last byte.
pub(crate) struct Cursor<I> {
    pieces: I,
    start: *mut u8,
    left: usize,
}

/// The pieces of a chain. `pieces` are those of [`Taken`](ringpass_virtio::device::Taken).
pub(crate) fn pieces<'a>(chain: &'a Chain, pieces: &'a [Piece]) -> impl Iterator<Item = Piece> + Clone + 'a {
    let (start, count) = chain.more;
    let more = pieces.get(start as usize..).unwrap_or_default();
    std::iter::once(chain.first).chain(more.iter().take(count as usize).copied())
}

/// Bytes of a chain.
pub(crate) fn total(chain: &Chain, all: &[Piece]) -> usize {
    pieces(chain, all).map(|piece| piece.len as usize).sum()
}

impl<I: Iterator<Item = Piece>> Cursor<I> {
    /// # Safety
    /// The pieces are mapped as long as the cursor is used.
    pub(crate) unsafe fn new(pieces: I) -> Self {
        Self { pieces, start: NonNull::dangling().as_ptr(), left: 0 }
    }

    /// The next stretch, of at most `most` bytes; `None` at the end.
    fn next(&mut self, most: usize) -> Option<(*mut u8, usize)> {
        while self.left == 0 {
            let piece = self.pieces.next()?;
            (self.start, self.left) = (piece.start.as_ptr(), piece.len as usize);
        }
        let (start, len) = (self.start, self.left.min(most));
        self.start = start.wrapping_add(len);
        self.left -= len;
        Some((start, len))
    }

    /// Fills `out`, as far as there are bytes. Returns how many were.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len()
            && let Some((start, len)) = self.next(out.len() - done)
        {
            // SAFETY: `len` bytes of the guest's, mapped as `new` demands, to as many of `out`, which is this process's
            // own and no part of it.
            unsafe { copy(start, out[done..].as_mut_ptr(), len) };
            done += len;
        }
        done
    }

    /// As [`read`](Self::read), to fill a packet's frame.
    pub(crate) fn read_packet(&mut self, packet: &mut Packet) -> usize {
        let mut done = 0;
        while done < packet.len()
            && let Some((start, len)) = self.next(packet.len() - done)
        {
            // SAFETY: `len` bytes of the guest's, mapped as `new` demands, to which only raw pointers lead.
            packet.write_raw(done, unsafe { RawBytes::new(start, len) });
            done += len;
        }
        done
    }

    /// Writes `bytes`, as far as there is room. Returns how many were.
    pub(crate) fn write<'a>(&mut self, bytes: impl Into<RawBytes<'a>>) -> usize {
        let (bytes, mut done) = (bytes.into(), 0);
        while done < bytes.len()
            && let Some((start, len)) = self.next(bytes.len() - done)
        {
            // SAFETY: `len` bytes of the guest's, mapped as `new` demands, to which only raw pointers lead; `range` checked that
            // there are as many to read.
            unsafe { copy(bytes.range(done..done + len).as_ptr(), start, len) };
            done += len;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_go_over_pieces() {
        let mut memory: Vec<u8> = (0..100).collect();
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: offsets inside.
        let piece = |offset, len| Piece { start: unsafe { base.add(offset) }, len };
        let all = [piece(90, 3), piece(50, 0), piece(10, 20), piece(0, 1)];
        let chain = Chain { id: 0, descriptors: 4, first: piece(40, 5), more: (1, 2) };
        assert_eq!(total(&chain, &all), 25);
        // SAFETY: `memory` lives on.
        let mut cursor = unsafe { Cursor::new(pieces(&chain, &all)) };
        let mut out = [0; 7];
        assert_eq!((cursor.read(&mut out), out), (7, [40, 41, 42, 43, 44, 10, 11]));
        assert_eq!(cursor.write(&[0xee; 30]), 18);
        assert_eq!(cursor.read(&mut out), 0);
        assert_eq!(memory[10..32], [&[10, 11][..], &[0xee; 18], &[30, 31]].concat());
    }
}
