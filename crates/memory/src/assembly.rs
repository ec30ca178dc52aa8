//! Frames that arrive buffer by buffer from a device that is not trusted.

use crate::Packet;

/// The buffers of a frame whose end has not arrived yet.
///
/// Bounded in bytes and in buffers: a device that never ends a frame, or writes a byte to each buffer, does not keep more
/// of the pool than a frame may need. Adding a buffer takes constant time and allocates nothing.
#[derive(Debug)]
pub struct Assembly {
    pieces: Vec<Packet>,
    len: usize,
    longest: usize,
}

impl Assembly {
    /// Creates an assembly for frames of up to `longest` bytes in buffers of `size` bytes.
    ///
    /// Devices fill each buffer of a frame but the last, and may put a header in front of the first. Twice as many buffers
    /// as that takes are accepted.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn new(longest: usize, size: usize) -> Self {
        let most = 2 * longest.div_ceil(size) + 1;
        Self { pieces: Vec::with_capacity(most), len: 0, longest }
    }

    /// Whether nothing has been added since the last frame.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a buffer, or several that are chained already and count as one. `false` if the frame becomes longer than it
    /// may be, or has too many buffers: then all of them are dropped.
    #[must_use]
    pub fn add(&mut self, piece: Packet) -> bool {
        let len = self.len + piece.total_len();
        if len > self.longest || self.pieces.len() == self.pieces.capacity() {
            self.clear();
            return false;
        }
        self.len = len;
        self.pieces.push(piece);
        true
    }

    /// Takes the frame, as a packet with the other buffers chained to the first; `None` if there is nothing.
    pub fn take(&mut self) -> Option<Packet> {
        self.len = 0;
        // From the back: each is appended to a packet that has no others behind it yet.
        self.pieces.drain(..).rev().reduce(|rest, mut piece| {
            piece.append(rest);
            piece
        })
    }

    /// Drops what was added.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
    }
}
