//! Chains that are given back and not yet shown to the driver.

/// An entry that the driver will see.
#[derive(Clone, Copy)]
pub(super) struct Used {
    /// Where in the ring it is written: index, or slot and wrap counter.
    pub(super) place: u32,
    pub(super) id: u16,
    pub(super) written: u32,
    whole: bool,
}

/// Entries to be written.
#[derive(Default)]
pub(super) struct Batch(Vec<Used>);

impl Batch {
    /// Adds a chain. In order, one that was used whole goes without an entry if another follows: that one's is written in
    /// its place, and the driver finds out how many are meant (2.7.9).
    pub(super) fn add(&mut self, used: (u32, u16, u32), whole: bool, in_order: bool) {
        let (place, id, written) = used;
        match self.0.last_mut() {
            Some(last) if in_order && last.whole => *last = Used { place: last.place, id, written, whole },
            _ => self.0.push(Used { place, id, written, whole }),
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
