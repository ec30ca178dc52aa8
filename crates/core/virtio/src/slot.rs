//! Positions in rings, common to both sides.

use crate::layout::flags;

/// A slot of a packed ring, with its wrap counter (2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrapIndex {
    pub(crate) index: u16,
    pub(crate) wrap: bool,
}

impl WrapIndex {
    /// Advances by `n` slots, at most `size`.
    #[inline(always)]
    pub(crate) fn advance(&mut self, n: u16, size: u16) {
        // Both are at most 32,768, so their sum needs more than 16 bits.
        let index = u32::from(self.index) + u32::from(n);
        let around = index >= u32::from(size);
        self.index = (if around { index - u32::from(size) } else { index }) as u16;
        self.wrap ^= around;
    }

    /// Goes back by `n` slots, at most `size`.
    pub(crate) fn retreat(&mut self, n: u16, size: u16) {
        let around = self.index < n;
        self.index = (u32::from(self.index) + if around { u32::from(size) } else { 0 } - u32::from(n)) as u16;
        self.wrap ^= around;
    }

    /// Returns the index with the wrap counter in bit 15, as in event suppression and notifications.
    pub(crate) fn with_wrap(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    /// Returns the flags of an available descriptor in this slot.
    #[inline(always)]
    pub(crate) fn available(self) -> u16 {
        if self.wrap { flags::AVAIL } else { flags::USED }
    }

    /// Returns the flags of a used descriptor in this slot.
    #[inline(always)]
    pub(crate) fn used(self) -> u16 {
        if self.wrap { flags::AVAIL | flags::USED } else { 0 }
    }

    /// Returns whether the requested slot is among the `unpublished` ones before this one (2.8.10, 2.7.10).
    pub(crate) fn need_event(self, asked: u16, unpublished: u16, size: u16) -> bool {
        let (at, wrap) = (asked & 0x7fff, asked >> 15 != 0);
        let at = if wrap == self.wrap { at } else { at.wrapping_sub(size) };
        self.index.wrapping_sub(at).wrapping_sub(1) < unpublished
    }
}

/// Returns whether a requested index is among those from `before` up to but excluding `now` (2.7.10:
/// `vring_need_event`).
pub(crate) fn need_event(at: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(at).wrapping_sub(1) < now.wrapping_sub(before)
}
