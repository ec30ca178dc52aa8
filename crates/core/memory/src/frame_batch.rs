//! Copies of frames that are handled together without packets.

use std::ops::Range;

use crate::{Packet, RawBytes};

/// Distance of frames in bytes, which keeps the first bytes of each on one cache line.
const ALIGNMENT: usize = 64;

/// Up to a fixed number of frames, copied into memory of the batch: for those who copy every frame before they look at
/// it, such as the model of a card, and so have no use for packets. Memory grows to what the longest batch takes.
///
/// ```
/// use ringpass_memory::FrameBatch;
///
/// let mut frames = FrameBatch::new(64, 60);
/// frames.push(14).fill(0xff);
/// frames.push_bytes(&[1; 1514]);
/// assert_eq!(frames.iter().map(<[u8]>::len).collect::<Vec<_>>(), [60, 1514]);
/// assert_eq!(frames.iter().next().unwrap()[13..15], [0xff, 0]);
/// assert_eq!((frames.len(), frames.room()), (2, 62));
/// ```
#[derive(Default)]
pub struct FrameBatch {
    bytes: Vec<u8>,
    places: Box<[Range<usize>]>,
    /// Number of frames, which have the first places.
    len: usize,
    /// Start of the next frame.
    end: usize,
    shortest: usize,
}

impl FrameBatch {
    /// Creates an empty batch for up to `limit` frames. Frames shorter than `shortest` bytes are padded with zeros, as on
    /// a wire.
    pub fn new(limit: usize, shortest: usize) -> Self {
        Self { places: vec![0..0; limit].into(), shortest, ..Self::default() }
    }

    /// Returns how many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.places.len() - self.len
    }

    /// Returns the number of frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no frames.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all frames.
    #[inline]
    pub fn clear(&mut self) {
        (self.len, self.end) = (0, 0);
    }

    /// Adds a frame of `len` bytes, without padding, and returns it for the caller to write: its bytes are any.
    ///
    /// # Panics
    /// If there is no room.
    #[inline(always)]
    pub fn push(&mut self, len: usize) -> &mut [u8] {
        let (start, end) = (self.end, self.end + len.max(self.shortest));
        if end > self.bytes.len() {
            self.grow(end);
        }
        self.places[self.len] = start..end;
        self.len += 1;
        self.end = end.next_multiple_of(ALIGNMENT);
        if len < self.shortest {
            self.bytes[start + len..end].fill(0);
        }
        &mut self.bytes[start..][..len]
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        self.bytes.resize(len.next_power_of_two(), 0);
    }

    /// Removes the last frame.
    #[inline]
    pub fn pop(&mut self) {
        if let Some(last) = self.len.checked_sub(1) {
            (self.len, self.end) = (last, self.places[last].start);
        }
    }

    /// Adds a copy of a frame.
    ///
    /// # Panics
    /// If there is no room.
    #[inline(always)]
    pub fn push_bytes<'a>(&mut self, frame: impl Into<RawBytes<'a>>) {
        let frame = frame.into();
        frame.read(0, self.push(frame.len()));
    }

    /// Adds a copy of a packet's frame, of any number of segments.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn push_packet(&mut self, packet: &Packet) {
        if packet.is_chained() {
            let copied = packet.copy_to(self.push(packet.total_len()));
            debug_assert!(copied.is_some(), "the place has the length of the frame");
        } else {
            self.push_bytes(packet.bytes());
        }
    }

    /// Returns the frames, with their padding.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.range(0..self.len)
    }

    /// Returns some of the frames, by their numbers.
    ///
    /// # Panics
    /// If there are not as many frames.
    #[inline]
    pub fn range(&self, numbers: Range<usize>) -> impl ExactSizeIterator<Item = &[u8]> {
        self.places[..self.len][numbers].iter().map(|place| &self.bytes[place.clone()])
    }
}
