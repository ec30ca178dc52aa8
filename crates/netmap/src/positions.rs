//! Where a ring stands, for the side that serves it.

/// Which way frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The application sends.
    Tx,
    /// It receives.
    Rx,
}

/// `hwcur` and `hwtail` of a ring. Of the slots, `hwcur..hwtail` are the application's, round the ring; there is always one
/// that is not. They are the server's own, so that nothing in shared memory can be wrong about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    slots: u32,
    cur: u32,
    tail: u32,
}

/// An application's `head` and `cur` that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("head {head} and cur {cur}, where slots {first} to {tail} (not included) of {slots} are the application's")]
pub struct Wild {
    head: u32,
    cur: u32,
    first: u32,
    tail: u32,
    slots: u32,
}

impl Positions {
    /// Of a ring in its first state: all slots but one can be filled, or none has been.
    ///
    /// # Panics
    /// If there are fewer than two slots.
    pub fn new(direction: Direction, slots: u32) -> Self {
        assert!(slots >= 2, "a ring needs a slot that is nobody's");
        Self { slots, cur: 0, tail: if direction == Direction::Tx { slots - 1 } else { 0 } }
    }

    /// As they were told; `None` if there are no such slots.
    #[inline]
    pub fn at(slots: u32, cur: u32, tail: u32) -> Option<Self> {
        (cur < slots && tail < slots).then_some(Self { slots, cur, tail })
    }

    /// The first slot that the application has not given up.
    pub fn hwcur(&self) -> u32 {
        self.cur
    }

    /// The first slot behind the application's.
    pub fn hwtail(&self) -> u32 {
        self.tail
    }

    /// Slots from one position to another, round the ring.
    #[inline]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.slots - from }
    }

    /// The position so many slots further, at most once around.
    #[inline]
    pub fn after(&self, position: u32, slots: u32) -> u32 {
        let sum = position + slots;
        if sum >= self.slots { sum - self.slots } else { sum }
    }

    /// Whether the application may say so: `hwcur <= head <= cur <= hwtail`, round the ring. Returns how many slots it gives
    /// up, those from `hwcur` to `head`.
    #[inline]
    pub fn check(&self, head: u32, cur: u32) -> Result<u32, Wild> {
        let Self { slots, cur: first, tail } = *self;
        if head < slots && cur < slots {
            let (given, until) = (self.distance(first, head), self.distance(first, cur));
            if given <= until && until <= self.distance(first, tail) {
                return Ok(given);
            }
        }
        Err(Wild { head, cur, first, tail, slots })
    }

    /// Whether an application that stands there has half of the slots left.
    #[inline]
    pub fn leaves_half(&self, head: u32) -> bool {
        self.distance(head, self.tail) >= self.slots / 2
    }

    /// So many slots, of those that [`check`](Self::check) returned, are dealt with.
    #[inline]
    pub fn take(&mut self, slots: u32) {
        debug_assert!(slots <= self.distance(self.cur, self.tail));
        self.cur = self.after(self.cur, slots);
    }

    /// How many more slots the application could have.
    #[inline]
    pub fn free(&self) -> u32 {
        self.slots - 1 - self.distance(self.cur, self.tail)
    }

    /// The application gets so many slots more: sent ones back, or received ones.
    #[inline]
    pub fn give(&mut self, slots: u32) {
        debug_assert!(slots <= self.free());
        self.tail = self.after(self.tail, slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state of small rings, and everything that an application can say, against a walk from slot to slot.
    #[test]
    fn what_an_application_may_say() {
        for slots in 2..9 {
            for (cur, tail) in (0..slots).flat_map(|cur| (0..slots).map(move |tail| (cur, tail))) {
                let ring = Positions { slots, cur, tail };
                let walk: Vec<u32> = (0..slots).map(|n| (cur + n) % slots).collect();
                let own = walk.iter().position(|&slot| slot == tail).unwrap();
                assert_eq!(ring.free() as usize, slots as usize - 1 - own);
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
        assert_eq!((tx.hwcur(), tx.hwtail(), tx.free()), (0, 3, 0));
        assert_eq!((rx.hwcur(), rx.hwtail(), rx.free()), (0, 0, 3));
        for round in 1..20 {
            assert_eq!(tx.check(tx.after(tx.hwcur(), 3), tx.hwtail()), Ok(3));
            tx.take(3);
            assert_eq!(tx.free(), 3);
            tx.give(3);
            rx.give(2);
            rx.take(rx.check(rx.hwtail(), rx.hwtail()).unwrap());
            assert_eq!((tx.hwcur(), rx.hwcur()), (round * 3 % 4, round * 2 % 4));
        }
        let error = rx.check(7, 0).unwrap_err().to_string();
        assert_eq!(error, "head 7 and cur 0, where slots 2 to 2 (not included) of 4 are the application's");
    }
}
