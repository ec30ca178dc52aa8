//! Frames at an offset in their buffers (`NETMAP_REQ_OPT_OFFSETS`).

use serde::{Deserialize, Serialize};

/// Where frames begin in the buffers of a ring: at the offset that is in some bits of each slot's pointer. By default at their start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    mask: u64,
    max: u16,
}

impl Offsets {
    /// Returns offsets of at most `max` bytes, in the lowest `bits` bits of the pointer, 1 to 64, or in all for 0; `None` if there are
    /// not so many bits, or if `max` does not fit into them, or into a buffer of 64 KiB.
    pub fn new(max: u64, bits: u32) -> Option<Self> {
        let mask = match bits {
            0 | 64 => u64::MAX,
            1..64 => (1 << bits) - 1,
            _ => return None,
        };
        let max = u16::try_from(max).ok().filter(|&max| u64::from(max) & mask == u64::from(max))?;
        Some(Self { mask, max })
    }

    /// Returns whether frames may begin elsewhere than at the start of their buffers.
    #[inline(always)]
    pub fn any(self) -> bool {
        self.mask != 0
    }

    /// Bits of a slot's pointer that are the offset.
    pub fn mask(self) -> u64 {
        self.mask
    }

    /// Largest offset in bytes.
    pub fn max(self) -> u16 {
        self.max
    }

    /// Number of bits of a slot's pointer that are the offset.
    pub fn bits(self) -> u32 {
        self.mask.count_ones()
    }

    /// Returns the offset that a slot's pointer has. As in netmap, larger ones are cropped.
    #[inline]
    pub fn at(self, pointer: u64) -> u16 {
        (pointer & self.mask).min(self.max.into()) as u16
    }

    /// Returns whether a program that wants `other` can use a ring that has these.
    pub fn allow(self, other: Self) -> bool {
        self.mask & other.mask == other.mask && self.max >= other.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_the_lowest_bits_and_cropped() {
        let offsets = Offsets::new(128, 16).unwrap();
        assert_eq!((offsets.mask(), offsets.max(), offsets.bits()), (0xffff, 128, 16));
        assert_eq!([0, 64, 129, 0xf_0040, u64::MAX].map(|pointer| offsets.at(pointer)), [0, 64, 128, 64, 128]);
        assert_eq!((Offsets::default().at(u64::MAX), Offsets::default().any(), offsets.any()), (0, false, true));
        assert_eq!(Offsets::new(9, 0), Offsets::new(9, 64));
        assert_eq!([Offsets::new(128, 7), Offsets::new(1, 65), Offsets::new(1 << 16, 0)], [None; 3]);
    }

    #[test]
    fn who_comes_later_wants_no_more_than_there_is() {
        let [a, b, c] = [(128, 16), (64, 8), (200, 8)].map(|(max, bits)| Offsets::new(max, bits).unwrap());
        assert!(a.allow(a) && a.allow(b) && !b.allow(a) && !a.allow(c) && !b.allow(c));
    }
}
