//! Assembly of frames that arrive in several buffers from an untrusted device.

use crate::Packet;

/// The buffers of a frame that has not arrived completely.
///
/// Bounded in bytes and in buffers, so that a device that never ends a frame, or writes one byte to each buffer,
/// does not hold more of the pool than a frame may need. Adding a buffer takes constant time and does not allocate.
#[derive(Debug)]
pub struct Assembly {
    pieces: Vec<Packet>,
    len: usize,
    longest: usize,
}

impl Assembly {
    /// Creates an assembly for frames of up to `longest` bytes in buffers of `size` bytes.
    ///
    /// Devices fill each buffer of a frame except the last, and may put a header in front of the first. Up to
    /// twice the number of buffers that this takes are accepted.
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

    /// Returns the number of bytes added so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a buffer, or several that are chained already and count as one. Returns `false` if the frame
    /// becomes too long or has too many buffers; then all of them are dropped.
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

    /// Takes the frame, as a packet with the other buffers chained to the first. Returns `None` if there is nothing.
    pub fn take(&mut self) -> Option<Packet> {
        self.len = 0;
        // From the back, so that each is appended to a packet that has no further segments yet.
        self.pieces.drain(..).rev().reduce(|rest, mut piece| {
            piece.append(rest);
            piece
        })
    }

    /// Drops all buffers added so far.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
    }
}
