//! Copies between packets and the guest's memory.
//!
//! The guest may change its memory at any time, so it is accessed through raw pointers only, never through
//! references. The code assumes only that the memory is mapped; any content is valid.

use std::ptr::NonNull;

pub(crate) use ringpass_memory::copy;
use ringpass_memory::{Packet, RawBytes};
use ringpass_virtio::device::{Chain, Piece};

/// Cursor over the pieces of one or more chains, which reads or writes them from the first to the last byte.
pub(crate) struct Cursor<I> {
    pieces: I,
    start: *mut u8,
    left: usize,
}

/// Returns the pieces of a chain. `pieces` is the piece table of the
/// [`ChainBatch`](ringpass_virtio::device::ChainBatch) that the chain belongs to.
pub(crate) fn pieces<'a>(chain: &'a Chain, pieces: &'a [Piece]) -> impl Iterator<Item = Piece> + Clone + 'a {
    let (start, count) = chain.more;
    let more = pieces.get(start as usize..).unwrap_or_default();
    std::iter::once(chain.first).chain(more.iter().take(count as usize).copied())
}

/// Returns the number of bytes in a chain.
pub(crate) fn total(chain: &Chain, all: &[Piece]) -> usize {
    pieces(chain, all).map(|piece| piece.len as usize).sum()
}

impl<I: Iterator<Item = Piece>> Cursor<I> {
    /// Creates a cursor at the first byte of the first piece.
    ///
    /// # Safety
    /// The pieces must stay mapped as long as the cursor is used.
    pub(crate) unsafe fn new(pieces: I) -> Self {
        Self { pieces, start: NonNull::dangling().as_ptr(), left: 0 }
    }

    /// Returns the next contiguous range, of at most `most` bytes; `None` at the end.
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

    /// Fills `out` as far as the pieces have bytes. Returns the number of bytes read.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len()
            && let Some((start, len)) = self.next(out.len() - done)
        {
            // SAFETY: `next` returned `len` bytes of one piece, which is mapped as long as the cursor is used by
            // the contract of `new`. `out[done..]` has at least `len` bytes, since `next` was limited to them; it
            // is this process's own memory and does not overlap the guest's.
            unsafe { copy(start, out[done..].as_mut_ptr(), len) };
            done += len;
        }
        done
    }

    /// Fills a packet's frame as far as the pieces have bytes. Returns the number of bytes read.
    pub(crate) fn read_packet(&mut self, packet: &mut Packet) -> usize {
        let mut done = 0;
        while done < packet.len()
            && let Some((start, len)) = self.next(packet.len() - done)
        {
            // SAFETY: `next` returned `len` bytes of one piece, which is mapped as long as the cursor is used by
            // the contract of `new`. The guest's memory is accessed through raw pointers only.
            packet.write_raw(done, unsafe { RawBytes::new(start, len) });
            done += len;
        }
        done
    }

    /// Writes `bytes` as far as the pieces have room. Returns the number of bytes written.
    pub(crate) fn write<'a>(&mut self, bytes: impl Into<RawBytes<'a>>) -> usize {
        let (bytes, mut done) = (bytes.into(), 0);
        while done < bytes.len()
            && let Some((start, len)) = self.next(bytes.len() - done)
        {
            // SAFETY: `next` returned `len` bytes of one piece, which is mapped as long as the cursor is used by
            // the contract of `new` and accessed through raw pointers only. `range` checks that the source has
            // `len` bytes from `done` on.
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
        // SAFETY: every offset used below is within the 100 bytes of `memory`.
        let piece = |offset, len| Piece { start: unsafe { base.add(offset) }, len };
        let all = [piece(90, 3), piece(50, 0), piece(10, 20), piece(0, 1)];
        let chain = Chain { id: 0, descriptors: 4, first: piece(40, 5), more: (1, 2) };
        assert_eq!(total(&chain, &all), 25);
        // SAFETY: the pieces lie in `memory`, which lives until the end of the test.
        let mut cursor = unsafe { Cursor::new(pieces(&chain, &all)) };
        let mut out = [0; 7];
        assert_eq!((cursor.read(&mut out), out), (7, [40, 41, 42, 43, 44, 10, 11]));
        assert_eq!(cursor.write(&[0xee; 30]), 18);
        assert_eq!(cursor.read(&mut out), 0);
        assert_eq!(memory[10..32], [&[10, 11][..], &[0xee; 18], &[30, 31]].concat());
    }
}
