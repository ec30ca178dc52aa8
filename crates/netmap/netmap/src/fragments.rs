//! Frames in several slots, or in several buffers of a pool.

use ringpass_memory::{Cache, Packet, RawBytes};

use crate::{Buffers, Flags};

/// Concatenates fragments, each a buffer and a length, into packets. `total` is the sum of the lengths, at
/// least 1. Returns `None` if the pool has too few buffers.
pub fn read(fragments: &[(u32, u16)], total: usize, bytes: &Buffers, cache: &mut Cache) -> Option<Packet> {
    let mut fragments = fragments.iter().map(|&(buffer, len)| (buffer, usize::from(len)));
    let mut buffer = 0;
    let mut from = 0;
    let mut end = 0;
    let mut next = |left: usize| {
        let mut packet = cache.packets(1).next()?;
        packet.set_len(left.min(packet.len()));
        let mut to = 0;
        while to < packet.len() {
            while from == end {
                (from, (buffer, end)) = (0, fragments.next()?);
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

/// Copies a header and a frame behind it to slots, each of them full except the last. `slot` gets the slot's number from 0 on, the
/// length and the flags, fills the slot in, and returns its buffer, which must hold that length. An error of
/// `slot` ends the copy.
pub fn write<E>(
    header: &[u8],
    packet: &Packet,
    bytes: &Buffers,
    mut slot: impl FnMut(u32, usize, Flags) -> Result<u32, E>,
) -> Result<(), E> {
    let (mut left, mut number) = (header.len() + packet.total_len(), 0);
    let mut segments = packet.segments();
    let mut segment = RawBytes::from(header);
    while left > 0 {
        let len = left.min(bytes.size());
        left -= len;
        let flags = if left > 0 { Flags::MORE_FRAGMENTS } else { Flags::default() };
        let buffer = slot(number, len, flags)?;
        number += 1;
        let mut to = 0;
        while to < len {
            while segment.is_empty() {
                segment = segments.next().expect("as many bytes as in all").bytes();
            }
            let here = segment.len().min(len - to);
            let _ = bytes.put(buffer, to, segment.range(0..here));
            (segment, to) = (segment.range(here..segment.len()), to + here);
        }
    }
    Ok(())
}
