//! The tail registers, as memory: the driver writes them for each burst, the model looks at them in each step.

use std::sync::atomic::AtomicU32;

use ringpass_registers::ixgbe::{RDT, TDT};

/// A cell on a cache line of its own, so that the rings do not disturb each other.
#[derive(Default)]
#[repr(align(64))]
struct Line(AtomicU32);

/// The cells of all RDT and TDT registers.
pub(super) struct Doorbells {
    rx: Box<[Line]>,
    tx: Box<[Line]>,
}

impl Default for Doorbells {
    fn default() -> Self {
        let lines = |count| (0..count).map(|_| Line::default()).collect();
        Self { rx: lines(super::rx::QUEUES), tx: lines(super::tx::QUEUES) }
    }
}

impl Doorbells {
    pub(super) fn rx(&self, queue: usize) -> &AtomicU32 {
        &self.rx[queue].0
    }

    pub(super) fn tx(&self, queue: usize) -> &AtomicU32 {
        &self.tx[queue].0
    }

    /// The cell of the register at an offset.
    pub(super) fn at(&self, offset: u32) -> Option<&AtomicU32> {
        let index = |base: u32| {
            let distance = offset.checked_sub(base)?;
            distance.is_multiple_of(0x40).then_some((distance / 0x40) as usize)
        };
        let line = index(RDT.at(0).offset).and_then(|queue| self.rx.get(queue));
        Some(&line.or_else(|| index(TDT.at(0).offset).and_then(|queue| self.tx.get(queue)))?.0)
    }

    pub(super) fn reset(&self) {
        self.rx.iter().chain(&self.tx).for_each(|line| line.0.store(0, std::sync::atomic::Ordering::Relaxed));
    }
}
