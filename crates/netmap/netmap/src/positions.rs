//! Positions of a ring on the serving side.

use serde::{Deserialize, Serialize};

/// Direction of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The application sends.
    Tx,
    /// The application receives.
    Rx,
}

/// `hwcur` and `hwtail` of a ring.
///
/// The slots `hwcur..hwtail` (modulo the ring's size) belong to the application; at least one slot does not.
/// The positions are private to the server, so no write to shared memory can make them invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Positions {
    slots: u32,
    cur: u32,
    tail: u32,
}

impl Positions {
    /// Returns the initial positions: the application owns all slots but one (Tx), or none (Rx).
    ///
    /// # Panics
    /// If there are fewer than two slots.
    pub fn new(direction: Direction, slots: u32) -> Self {
        assert!(slots >= 2, "a ring needs a slot that is nobody's");
        Self { slots, cur: 0, tail: if direction == Direction::Tx { slots - 1 } else { 0 } }
    }

    /// Returns the given positions; `None` if either is not below `slots`.
    #[inline]
    pub fn at(slots: u32, cur: u32, tail: u32) -> Option<Self> {
        (cur < slots && tail < slots).then_some(Self { slots, cur, tail })
    }

    /// First slot that the application has not released.
    #[inline]
    pub fn hwcur(&self) -> u32 {
        self.cur
    }

    /// First slot after the application's.
    #[inline]
    pub fn hwtail(&self) -> u32 {
        self.tail
    }

    /// Number of slots from one position to another, modulo the ring's size.
    #[inline]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.slots - from }
    }

    /// The position `slots` slots further on. `slots` is at most the ring's size.
    #[inline]
    pub fn after(&self, position: u32, slots: u32) -> u32 {
        let sum = position + slots;
        if sum >= self.slots { sum - self.slots } else { sum }
    }

    /// Validates an application's positions: `hwcur <= head <= cur <= hwtail`, modulo the ring's size. Returns
    /// how many slots it releases, those from `hwcur` to `head`.
    #[inline]
    pub fn check(&self, head: u32, cur: u32) -> Result<u32, SyncError> {
        let Self { slots, cur: first, tail } = *self;
        if head < slots && cur < slots {
            let (given, until) = (self.distance(first, head), self.distance(first, cur));
            if given <= until && until <= self.distance(first, tail) {
                return Ok(given);
            }
        }
        Err(SyncError::Program { head, cur, first, tail, slots })
    }

    /// Whether an application at `head` still owns at least half of the slots.
    #[inline]
    pub fn leaves_half(&self, head: u32) -> bool {
        self.distance(head, self.tail) >= self.slots / 2
    }

    /// Advances `hwcur`: `slots` of the slots that [`check`](Self::check) returned are processed.
    #[inline]
    pub fn advance_hwcur(&mut self, slots: u32) {
        debug_assert!(slots <= self.distance(self.cur, self.tail));
        self.cur = self.after(self.cur, slots);
    }

    /// Number of further slots that the application could get.
    #[inline]
    pub fn room(&self) -> u32 {
        self.slots - 1 - self.distance(self.cur, self.tail)
    }

    /// Advances `hwtail`: the application gets `slots` more slots, with sent frames returned or with received
    /// ones.
    #[inline]
    pub fn advance_hwtail(&mut self, slots: u32) {
        debug_assert!(slots <= self.room());
        self.tail = self.after(self.tail, slots);
    }
}

/// Error of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The program has set invalid positions; they were not passed on.
    #[error(
        "the program set head {head} and cur {cur}, where slots {first} to {tail} (not included) of {slots} are the application's"
    )]
    Program {
        /// What the program set.
        head: u32,
        /// What the program set.
        cur: u32,
        /// First slot of the application.
        first: u32,
        /// First slot after the application's.
        tail: u32,
        /// Number of slots.
        slots: u32,
    },
    /// The other side, a server or the other end of a pipe, has written positions that do not exist.
    #[error("the other side has moved to slots {0} and {1}, which there are not")]
    Peer(u32, u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every state of small rings and every pair of positions of an application with a walk from slot
    /// to slot.
    #[test]
    fn what_an_application_may_say() {
        for slots in 2..9 {
            for (cur, tail) in (0..slots).flat_map(|cur| (0..slots).map(move |tail| (cur, tail))) {
                let ring = Positions { slots, cur, tail };
                let walk: Vec<u32> = (0..slots).map(|n| (cur + n) % slots).collect();
                let own = walk.iter().position(|&slot| slot == tail).unwrap();
                assert_eq!(ring.room() as usize, slots as usize - 1 - own);
                for (head, wake) in (0..slots + 2).flat_map(|head| (0..slots + 2).map(move |wake| (head, wake))) {
                    let place = |of| walk[..=own].iter().position(|&slot| slot == of);
                    let right = place(head).zip(place(wake)).filter(|(head, wake)| head <= wake);
                    assert_eq!(
                        ring.check(head, wake).ok(),
                        right.map(|(head, _)| head as u32),
                        "{ring:?} {head} {wake}"
                    );
                }
            }
        }
    }

    #[test]
    fn slots_go_round() {
        let (mut tx, mut rx) = (Positions::new(Direction::Tx, 4), Positions::new(Direction::Rx, 4));
        assert_eq!((tx.hwcur(), tx.hwtail(), tx.room()), (0, 3, 0));
        assert_eq!((rx.hwcur(), rx.hwtail(), rx.room()), (0, 0, 3));
        for round in 1..20 {
            assert_eq!(tx.check(tx.after(tx.hwcur(), 3), tx.hwtail()), Ok(3));
            tx.advance_hwcur(3);
            assert_eq!(tx.room(), 3);
            tx.advance_hwtail(3);
            rx.advance_hwtail(2);
            rx.advance_hwcur(rx.check(rx.hwtail(), rx.hwtail()).unwrap());
            assert_eq!((tx.hwcur(), rx.hwcur()), (round * 3 % 4, round * 2 % 4));
        }
        let error = rx.check(7, 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "the program set head 7 and cur 0, where slots 2 to 2 (not included) of 4 are the application's"
        );
    }
}
