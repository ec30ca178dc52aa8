//! The Rx packet buffer: frames that wait for a descriptor (7.1.3).

use std::collections::VecDeque;

use super::rss::Class;

/// Longest frame that the NIC receives in bytes, with CRC (8.2.3.22.13).
const MAX_FRAME_LEN: usize = 16 << 10;
/// Packet buffer memory in bytes (8.2.3.8.9).
const MEMORY: usize = 512 << 10;

struct Waiting {
    start: usize,
    len: usize,
    class: Class,
}

/// A first-in, first-out queue of frames, bounded in bytes.
pub(super) struct Fifo {
    bytes: Box<[u8]>,
    frames: VecDeque<Waiting>,
    used: usize,
    end: usize,
}

impl Default for Fifo {
    fn default() -> Self {
        // Frames do not wrap around the end; the space unused there is less than a frame.
        Self { bytes: vec![0; MEMORY + 2 * MAX_FRAME_LEN].into(), frames: VecDeque::new(), used: 0, end: 0 }
    }
}

impl Fifo {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Appends a frame; `false` if its bytes do not fit into `limit`.
    #[must_use]
    pub(super) fn push(&mut self, frame: &[u8], class: Class, limit: usize) -> bool {
        let len = frame.len();
        if len > MAX_FRAME_LEN || self.used + len > limit.min(MEMORY) {
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
