//! Incremental update of the Internet checksum (RFC 1624).

/// Change of bytes that a checksum covers: what is to be added to the checksum's complement.
///
/// ```
/// use ringpass_port::headers::ChecksumChange;
///
/// let change = ChecksumChange::of(&[0x55, 0x55], &[0x32, 0x85]);
/// assert_eq!(change.apply(0xdd2f), 0x0000, "the example of RFC 1624, section 4");
/// assert_eq!(change.and(ChecksumChange::of(&[1, 2], &[1, 3])).apply(0xdd2f), 0xfffe);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the checksum that covers the changed field is wrong without it"]
pub struct ChecksumChange(
    /// A sum of 16-bit words in the machine's byte order, on which such sums do not depend (RFC 1071, section 2), at most 2^26,
    /// whose carries are not added yet.
    u32,
);

impl ChecksumChange {
    /// Returns the change from `old` to `new` bytes that begin at an even offset and have an even length, which is that of
    /// both.
    ///
    /// # Panics
    /// If the lengths differ or are odd or more than 1024.
    #[inline]
    pub fn of(old: &[u8], new: &[u8]) -> Self {
        assert!(old.len() == new.len() && old.len().is_multiple_of(2) && old.len() <= 1024, "words of equal number");
        let words = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
        let change = |(old, new): (&[u8; 2], &[u8; 2])| {
            u32::from(!u16::from_ne_bytes(*old)) + u32::from(u16::from_ne_bytes(*new))
        };
        Self(words.map(change).sum())
    }

    /// Returns both changes together.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        Self(fold(self.0) + fold(other.0))
    }

    /// Returns a checksum after the change (RFC 1624, equation 3).
    #[inline]
    pub fn apply(self, checksum: u16) -> u16 {
        // The second step adds the carry of the first one, which is all that is left of 27 bits.
        u16::from_be(!(fold(fold(u32::from(!checksum.to_be()) + self.0)) as u16))
    }
}

/// Adds the carries of a ones' complement sum, which may make one more.
#[inline]
fn fold(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}
