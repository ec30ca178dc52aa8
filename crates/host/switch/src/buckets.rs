//! Places of keys in a table of buckets with [`WAYS`] entries each.

use std::hash::{BuildHasher, RandomState};

/// Entries of a bucket.
pub(crate) const WAYS: usize = 8;

/// The way from a key to its bucket.
pub(crate) struct Buckets {
    /// Random, so that nobody can choose addresses that fall into one bucket.
    multiplier: u64,
    /// Shift of a key's hash that leaves the bucket's index and the way to try first.
    shift: u32,
}

impl Buckets {
    /// Returns the number of buckets for this many entries, a power of two, and the way to them.
    pub(crate) fn for_entries(entries: usize) -> (usize, Self) {
        let buckets = entries.div_ceil(WAYS).next_power_of_two().max(2);
        let multiplier = RandomState::new().hash_one(entries) | 1;
        (buckets, Self { multiplier, shift: 64 - (buckets * WAYS).trailing_zeros() })
    }

    /// Returns the index of a key's bucket, and the way to try first.
    #[inline]
    pub(crate) fn place(&self, key: u64) -> (usize, usize) {
        let place = (key.wrapping_mul(self.multiplier) >> (self.shift & 63)) as usize;
        (place / WAYS, place % WAYS)
    }
}
