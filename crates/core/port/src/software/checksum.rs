//! The Internet checksum (RFC 1071).

use ringpass_memory::{Packet, RawBytes};

/// A ones' complement sum of bytes.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    total: u64,
    /// Whether an odd number of bytes was added, so that the next byte is the second of its word.
    odd: bool,
}

impl Sum {
    /// Adds bytes as big-endian 16-bit words. After an odd number of bytes, continues in the middle of a word.
    pub fn add<'a>(&mut self, bytes: impl Into<RawBytes<'a>>) {
        let (bytes, mut at) = (bytes.into(), 0);
        if self.odd
            && let Some([first]) = bytes.array(at)
        {
            self.total += u64::from(first);
            (at, self.odd) = (at + 1, false);
        }
        while let Some(block) = bytes.array::<64>(at) {
            let words = block.as_chunks::<4>().0.iter();
            self.total += words.map(|&word| u64::from(u32::from_be_bytes(word))).sum::<u64>();
            at += block.len();
        }
        while let Some(word) = bytes.array::<2>(at) {
            self.total += u64::from(u16::from_be_bytes(word));
            at += word.len();
        }
        if let Some([last]) = bytes.array(at) {
            self.total += u64::from(last) << 8;
            self.odd = true;
        }
    }

    /// Returns the sum folded to 16 bits, as a checksum field holds it for a pseudo header.
    pub fn folded(self) -> [u8; 2] {
        let mut sum = self.total;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        (sum as u16).to_be_bytes()
    }

    /// Returns the complemented sum, as it is sent.
    pub fn checksum(self) -> [u8; 2] {
        self.folded().map(|byte| !byte)
    }

    /// Returns the complemented sum with the other representation of 0, as 0 means "no checksum" in UDP (RFC
    /// 768). Correct for TCP too.
    pub fn l4_checksum(self) -> [u8; 2] {
        match self.checksum() {
            [0, 0] => [0xff, 0xff],
            checksum => checksum,
        }
    }
}

/// Sums a frame from `start` to its end and writes the checksum to the field `offset` bytes behind `start`. The
/// field must already hold the sum of the pseudo header. Returns `false` and changes nothing if the field lies
/// outside the frame's first buffer.
pub fn complete_checksum(packet: &mut Packet, start: usize, offset: usize) -> bool {
    let covered = packet.len().saturating_sub(start);
    if covered < 2 || offset > covered - 2 {
        return false;
    }
    let mut sum = Sum::default();
    sum.add(packet.bytes().range(start..packet.len()));
    packet.segments().skip(1).for_each(|segment| sum.add(segment));
    packet.write(start + offset, &sum.l4_checksum());
    true
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{Mempool, MempoolConfig};

    use super::*;
    use crate::chain;

    fn completed(pieces: &[&[u8]], start: usize, offset: usize) -> Option<Vec<u8>> {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let mut packet = chain([pieces[0]], || pool.alloc()).unwrap();
        pieces[1..].iter().for_each(|piece| packet.append(chain([*piece], || pool.alloc()).unwrap()));
        complete_checksum(&mut packet, start, offset).then(|| packet.to_vec())
    }

    /// The example of RFC 1071, section 3: the words 0001 f203 f4f5 f6f7 add up to ddf2.
    #[test]
    fn the_rfcs_example() {
        let frame = [9, 0, 0, 0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7];
        for cut in [11, 3, 4, 5, 6, 10] {
            let (first, rest) = frame.split_at(cut);
            let completed = completed(&[first, rest, &[], &[0]], 1, 0).unwrap();
            assert_eq!(completed[..3], [9, 0x22, 0x0d], "{cut}");
        }
    }

    #[test]
    fn odd_lengths_and_zero() {
        assert_eq!(completed(&[&[0xff, 0xff, 0, 0, 0]], 0, 2).unwrap()[2..4], [0xff, 0xff]);
        assert_eq!(completed(&[&[0, 0, 1]], 0, 0).unwrap(), [0xfe, 0xff, 1]);
    }

    #[test]
    fn fields_outside_the_frame_change_nothing() {
        for (start, offset) in [(0, 3), (4, 0), (5, 0), (usize::MAX, 0), (3, 1), (1, usize::MAX)] {
            assert_eq!(completed(&[&[1, 2, 3, 4]], start, offset), None);
        }
    }
}
