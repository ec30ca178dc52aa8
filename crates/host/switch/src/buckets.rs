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
        let shift = 64 - (buckets * WAYS).trailing_zeros();
        let random = || Self { multiplier: RandomState::new().hash_one(entries) | 1, shift };
        // Most multipliers do; with none in a row that does, the last one must.
        const TRIES: usize = 32;
        let good = (1..TRIES).map(|_| random()).find(|places| places.spreads(buckets));
        (buckets, good.unwrap_or_else(random))
    }

    /// Returns whether addresses that follow each other, as those of guests do, fit into these buckets when every second place or so is taken. A
    /// product leaves them at equal distances, which with some multipliers are near each other or near a simple fraction of all buckets.
    fn spreads(&self, buckets: usize) -> bool {
        // Keys are addresses, or addresses and VLANs of 12 bits.
        [1, 1 << 12].iter().all(|step| {
            let mut taken = vec![0; buckets];
            (1..=buckets * WAYS * 2 / 5).all(|number| {
                let (bucket, _) = self.place(number as u64 * step);
                taken[bucket] += 1;
                taken[bucket] <= WAYS
            })
        })
    }

    /// Returns the index of a key's bucket, and the way to try first.
    #[inline]
    pub(crate) fn place(&self, key: u64) -> (usize, usize) {
        let place = (key.wrapping_mul(self.multiplier) >> (self.shift & 63)) as usize;
        (place / WAYS, place % WAYS)
    }

    /// Returns the index of the bucket in which a key is that found no room in its first one, and the way to try first. It may be the same bucket.
    #[inline]
    pub(crate) fn second(&self, key: u64) -> (usize, usize) {
        let product = key.wrapping_mul(self.multiplier);
        self.place(product ^ product >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_follow_each_other_find_places() {
        for entries in [16, 1000, 1 << 16, 400_000] {
            for _ in 0..10 {
                let (buckets, places) = Buckets::for_entries(entries);
                assert!(places.spreads(buckets), "{entries}");
            }
        }
    }
}
