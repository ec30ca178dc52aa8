//! Frames in several slots, or in several buffers of a pool.

use ringpass_memory::{Cache, Packet, RawBytes};

use crate::{Buffers, Flags};

/// Bytes of a frame in one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// Index of the buffer.
    pub buffer: u32,
    /// Where they begin.
    pub offset: u16,
    /// Number of bytes.
    pub len: u16,
}

impl Fragment {
    /// Returns the end of the bytes in the buffer.
    pub fn end(self) -> usize {
        usize::from(self.offset) + usize::from(self.len)
    }
}

/// Concatenates fragments into packets. `total` is the sum of the lengths, at
/// least 1. Returns `None` if the pool has too few buffers.
pub fn read(fragments: &[Fragment], total: usize, bytes: &Buffers, cache: &mut Cache) -> Option<Packet> {
    let mut fragments = fragments.iter();
    let mut buffer = 0;
    let (mut from, mut end) = (0, 0);
    let mut next = |left: usize| {
        let mut packet = cache.packets(1).next()?;
        packet.set_len(left.min(packet.len()));
        let mut to = 0;
        while to < packet.len() {
            while from == end {
                let next = fragments.next()?;
                (buffer, from, end) = (next.buffer, next.offset.into(), next.end());
            }
            let len = (packet.len() - to).min(end - from);
            // The caller has checked buffer and length.
            packet.write_raw(to, bytes.raw(buffer, from, len)?);
            (from, to) = (from + len, to + len);
        }
        Some(packet)
    };
    let mut frame = next(total)?;
    let mut left = total - frame.len();
    let mut last = &mut frame;
    while left > 0 {
        last = last.push_segment(next(left)?);
        left -= last.len();
    }
    Some(frame)
}

/// Copies a header and a frame behind it to slots. `slot` gets the slot's number from 0 on and the number of bytes that are left,
/// fills the slot in, and returns the part of its buffer, which must exist, that gets the next bytes: at least one, and not more than
/// are left. An error of `slot` ends the copy.
pub fn write<E>(
    header: &[u8],
    packet: &Packet,
    bytes: &Buffers,
    mut slot: impl FnMut(u32, usize) -> Result<Fragment, E>,
) -> Result<(), E> {
    let (mut left, mut number) = (header.len() + packet.total_len(), 0);
    let mut segments = packet.segments();
    let mut segment = RawBytes::from(header);
    while left > 0 {
        let fragment = slot(number, left)?;
        number += 1;
        let (mut to, end) = (usize::from(fragment.offset), fragment.end());
        left -= usize::from(fragment.len);
        while to < end {
            while segment.is_empty() {
                segment = segments.next().expect("as many bytes as in all").bytes();
            }
            let here = segment.len().min(end - to);
            let _ = bytes.put(fragment.buffer, to, segment.range(0..here));
            (segment, to) = (segment.range(here..segment.len()), to + here);
        }
    }
    Ok(())
}

/// Returns the flags of a slot with `len` bytes of `left`.
pub fn flags(len: usize, left: usize) -> Flags {
    if len < left { Flags::MORE_FRAGMENTS } else { Flags::default() }
}
