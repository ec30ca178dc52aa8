//! Pseudo-random numbers.

/// A generator of pseudo-random numbers (xorshift64*), the same in each run.
pub struct Random(u64);

impl Random {
    /// Creates a generator.
    ///
    /// # Panics
    ///
    /// If the seed is 0, which yields nothing but zeros.
    pub fn new(seed: u64) -> Self {
        assert_ne!(seed, 0, "a generator's seed");
        Self(seed)
    }

    /// Returns the next number, of 48 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends, and nobody iterates over it")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns an index into a list of `len` elements; 0 if there are none.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len.max(1) as u64) as usize
    }
}
