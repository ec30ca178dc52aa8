//! A queue as its registers describe it, and its ring once it is enabled.

use super::interrupts::NO_VECTOR;
use super::ring::{Areas, Ring};

/// Packets of a queue in one step.
pub(super) const BURST: usize = 64;

/// A queue's registers (4.1.4.3) and its state in the device.
#[derive(Default)]
pub(super) struct Queue {
    /// Largest number of descriptors; 0 if there is no such queue.
    pub(super) most: u16,
    pub(super) size: u16,
    pub(super) areas: Areas,
    pub(super) vector: u16,
    pub(super) enabled: bool,
    /// The legacy interface's page number.
    pub(super) page: u32,
    /// A lie keeps the reset of this queue from ending.
    pub(super) resetting: bool,
    pub(super) ring: Option<Box<dyn Ring>>,
    /// The device polls the ring; otherwise it waits for a notification.
    pub(super) awake: bool,
}

impl Queue {
    pub(super) fn new(most: u16) -> Self {
        Self { most, size: most, vector: NO_VECTOR, ..Self::default() }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.most);
    }
}
