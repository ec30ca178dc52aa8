//! Used chains that are not yet visible to the driver.

/// A used entry for the driver.
#[derive(Clone, Copy)]
pub(super) struct Used {
    /// Place in the ring where it is written: index of a split ring, or slot and wrap counter of a packed one.
    pub(super) place: u32,
    pub(super) id: u16,
    pub(super) written: u32,
    /// Whether the whole chain was written.
    pub(super) whole: bool,
}

/// Used entries to be written.
#[derive(Default)]
pub(super) struct Batch(Vec<Used>);

impl Batch {
    /// Adds a chain. With IN_ORDER, a chain used whole needs no entry of its own if another follows: the entry
    /// of that one replaces it, and the driver infers how many chains it stands for (2.7.9).
    pub(super) fn add(&mut self, used: Used, in_order: bool) {
        match self.0.last_mut() {
            Some(last) if in_order && last.whole => *last = Used { place: last.place, ..used },
            _ => self.0.push(used),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn entries(&mut self) -> &mut [Used] {
        &mut self.0
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
