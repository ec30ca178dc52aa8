//! The Internet checksum (RFC 1071), completed where the kernel left it to a card.

/// Sums from `start` to the frame's end, where the checksum's field already holds the sum of the pseudo header, and
/// writes the result to the field, `offset` bytes behind `start`. `false`, and nothing changed, if these lie outside
/// the frame.
pub(crate) fn complete(frame: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(field) = frame.get(start..).and_then(|covered| covered.get(offset..offset + 2)) else { return false };
    debug_assert_eq!(field.len(), 2);
    let (words, odd) = frame[start..].as_chunks::<2>();
    let last = odd.first().map_or(0, |&byte| u64::from(byte) << 8);
    let mut sum = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum::<u64>() + last;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    // 0 means "no checksum" to UDP, so its other form is sent (RFC 768), which is right for TCP too.
    let checksum = match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    };
    frame[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::complete;

    /// The example of RFC 1071, section 3: the words 0001 f203 f4f5 f6f7 add up to ddf2.
    #[test]
    fn the_rfcs_example() {
        let mut frame = [9, 0, 0, 0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7];
        assert!(complete(&mut frame, 1, 0));
        assert_eq!(frame[..3], [9, 0x22, 0x0d]);
    }

    #[test]
    fn odd_lengths_and_zero() {
        let mut frame = [0xff, 0xff, 0, 0, 0];
        assert!(complete(&mut frame, 0, 2));
        assert_eq!(frame[2..4], [0xff, 0xff]);
        let mut frame = [0, 0, 1];
        assert!(complete(&mut frame, 0, 0));
        assert_eq!(frame, [0xfe, 0xff, 1]);
    }

    #[test]
    fn fields_outside_the_frame_change_nothing() {
        for (start, offset) in [(0, 3), (4, 0), (5, 0), (usize::MAX, 0), (3, 1)] {
            let mut frame = [1, 2, 3, 4];
            assert!(!complete(&mut frame, start, offset));
            assert_eq!(frame, [1, 2, 3, 4]);
        }
    }
}
