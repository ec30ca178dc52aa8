//! Sequence numbers of a flow: detects lost, reordered and duplicate frames.

/// Number of recent sequence numbers for which duplicates are told from late frames.
const WINDOW: u64 = 1024;

/// Order in which a frame arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Later in sequence than all before.
    InOrder,
    /// For the first time, but after a later one (RFC 4737, 3.3).
    Reordered,
    /// A second time.
    Duplicate,
}

/// Sequence numbers of one flow that have arrived.
#[derive(Clone)]
pub struct SequenceTracker {
    next: u64,
    /// A bit for each of the last [`WINDOW`] numbers before `next`.
    seen: [u64; WINDOW as usize / 64],
}

impl Default for SequenceTracker {
    fn default() -> Self {
        Self { next: 0, seen: [0; WINDOW as usize / 64] }
    }
}

impl SequenceTracker {
    /// Returns the number after the highest one that has arrived.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Records an arrival. A number older than the window counts as reordered.
    pub fn record(&mut self, sequence: u64) -> Arrival {
        let (word, bit) = ((sequence % WINDOW / 64) as usize, 1 << (sequence % 64));
        if sequence >= self.next {
            if sequence - self.next >= WINDOW {
                self.seen.fill(0);
            } else {
                (self.next..sequence).for_each(|n| self.seen[(n % WINDOW / 64) as usize] &= !(1 << (n % 64)));
            }
            self.next = sequence.saturating_add(1);
            self.seen[word] |= bit;
            return Arrival::InOrder;
        }
        if self.next - sequence <= WINDOW {
            if self.seen[word] & bit != 0 {
                return Arrival::Duplicate;
            }
            self.seen[word] |= bit;
        }
        Arrival::Reordered
    }
}

#[cfg(test)]
mod tests {
    use super::Arrival::*;
    use super::*;

    #[test]
    fn arrivals_are_told_apart() {
        let mut track = SequenceTracker::default();
        let arrivals = [0, 1, 3, 2, 2, 3, 5000, 4, 4999, 4999, 5001].map(|n| track.record(n));
        let expected = [
            InOrder, InOrder, InOrder, Reordered, Duplicate, Duplicate, InOrder, Reordered, Reordered, Duplicate,
            InOrder,
        ];
        assert_eq!(arrivals, expected);
        assert_eq!(track.next(), 5002);
    }

    #[test]
    fn the_window_goes_round_like_a_set_that_forgets() {
        let mut track = SequenceTracker::default();
        let mut set = std::collections::HashSet::new();
        let mut random = 1u64;
        for i in 0..100_000u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let sequence = (i / 2 + 500).saturating_sub(random >> 33 & 511);
            let expected = match (track.next() <= sequence, set.insert(sequence)) {
                (true, _) => InOrder,
                (false, true) => Reordered,
                (false, false) => Duplicate,
            };
            assert_eq!(track.record(sequence), expected, "{sequence}");
        }
    }
}
