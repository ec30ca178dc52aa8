//! Positions in rings, as both sides count them.

use crate::layout::flags;

/// A slot of a packed ring, with the wrap counter that belongs to it (2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) index: u16,
    pub(crate) wrap: bool,
}

impl Slot {
    /// So many slots on, at most once around.
    #[inline(always)]
    pub(crate) fn advance(&mut self, n: u16, size: u16) {
        // Both up to 32,768.
        let index = u32::from(self.index) + u32::from(n);
        let around = index >= u32::from(size);
        self.index = (if around { index - u32::from(size) } else { index }) as u16;
        self.wrap ^= around;
    }

    /// So many slots back, likewise.
    pub(crate) fn retreat(&mut self, n: u16, size: u16) {
        let around = self.index < n;
        self.index = (u32::from(self.index) + if around { u32::from(size) } else { 0 } - u32::from(n)) as u16;
        self.wrap ^= around;
    }

    /// As in events and notifications.
    pub(crate) fn with_wrap(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    /// The flags of an available descriptor in this slot.
    #[inline(always)]
    pub(crate) fn available(self) -> u16 {
        if self.wrap { flags::AVAIL } else { flags::USED }
    }

    /// The flags of a used descriptor in this slot.
    #[inline(always)]
    pub(crate) fn used(self) -> u16 {
        if self.wrap { flags::AVAIL | flags::USED } else { 0 }
    }

    /// Whether the slot that was asked for lies among the `fresh` ones before this one (2.8.10, 2.7.10).
    pub(crate) fn passed(self, asked: u16, fresh: u16, size: u16) -> bool {
        let (at, wrap) = (asked & 0x7fff, asked >> 15 != 0);
        let at = if wrap == self.wrap { at } else { at.wrapping_sub(size) };
        self.index.wrapping_sub(at).wrapping_sub(1) < fresh
    }
}

/// Whether an index that was asked for lies among those from `before` to `now` (2.7.10: `vring_need_event`).
pub(crate) fn passed(at: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(at).wrapping_sub(1) < now.wrapping_sub(before)
}
