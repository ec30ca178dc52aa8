//! The Rx packet buffer: frames that wait for a descriptor (7.1.3).

use std::collections::VecDeque;

use super::rss::Class;

/// Longest frame that the card takes, with its CRC (8.2.3.22.13).
const LONGEST: usize = 16 << 10;
/// All of the card's packet buffer memory (8.2.3.8.9).
const MEMORY: usize = 512 << 10;

struct Waiting {
    start: usize,
    len: usize,
    class: Class,
}

/// A bounded first-in, first-out queue of frames, counted in bytes.
pub(super) struct Fifo {
    bytes: Box<[u8]>,
    frames: VecDeque<Waiting>,
    used: usize,
    end: usize,
}

impl Default for Fifo {
    fn default() -> Self {
        // Frames do not wrap around the end; what one leaves unused there is less than a frame.
        Self { bytes: vec![0; MEMORY + 2 * LONGEST].into(), frames: VecDeque::new(), used: 0, end: 0 }
    }
}

impl Fifo {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame; `false` if fewer than its bytes of `limit` are free.
    #[must_use]
    pub(super) fn push(&mut self, frame: &[u8], class: Class, limit: usize) -> bool {
        let len = frame.len();
        if len > LONGEST || self.used + len > limit.min(MEMORY) {
            return false;
        }
        let start = if self.end + len > self.bytes.len() { 0 } else { self.end };
        self.bytes[start..start + len].copy_from_slice(frame);
        self.frames.push_back(Waiting { start, len, class });
        self.used += len;
        self.end = start + len;
        true
    }

    pub(super) fn front(&self) -> Option<(&[u8], Class)> {
        let first = self.frames.front()?;
        Some((&self.bytes[first.start..first.start + first.len], first.class))
    }

    pub(super) fn pop(&mut self) {
        self.used -= self.frames.pop_front().map_or(0, |first| first.len);
    }

    pub(super) fn clear(&mut self) {
        self.frames.clear();
        (self.used, self.end) = (0, 0);
    }
}
