//! Editing frames: their length and their start.

use crate::Packet;

impl Packet {
    /// Whether the frame, or its part in the first buffer, has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes free in front of the frame.
    #[inline]
    pub fn headroom(&self) -> usize {
        (self.buffer.slot().headroom as i32 + i32::from(self.offset)) as usize
    }

    /// Bytes that the frame can have at most from where it starts now.
    #[inline]
    pub fn capacity(&self) -> usize {
        (self.buffer.slot().size as i32 - i32::from(self.offset)) as usize
    }

    /// Sets the frame's length. Bytes gained keep what the buffer held before.
    ///
    /// # Panics
    /// If `len` is above [`capacity`](Self::capacity).
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a frame of {len} bytes in a buffer of {}", self.capacity());
        self.len = len as u32;
    }

    /// Replaces the frame by a copy of `bytes`; `false`, and nothing changed, if it does not fit.
    #[must_use]
    pub fn copy_from(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.capacity();
        if fits {
            self.len = bytes.len() as u32;
            self.write(0, bytes);
        }
        fits
    }

    /// Opens `n` bytes in front of the frame, which keep what the buffer held there; `false`, and nothing changed, if the
    /// headroom is smaller.
    #[inline]
    #[must_use]
    pub fn prepend(&mut self, n: usize) -> bool {
        let fits = n <= self.headroom();
        if fits {
            self.offset -= n as i16;
            self.len += n as u32;
        }
        fits
    }

    /// Cuts `n` bytes off the front; `false`, and nothing changed, if the frame is shorter.
    #[inline]
    #[must_use]
    pub fn trim_front(&mut self, n: usize) -> bool {
        let fits = n <= self.len as usize;
        if fits {
            self.offset += n as i16;
            self.len -= n as u32;
        }
        fits
    }
}
