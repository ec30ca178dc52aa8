//! The configured lies of a device and their state.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::lies::{Lie, Lies};
use crate::lies::LieSchedule;

/// A device's lies and their state; the parts of the device share it.
pub(super) struct Liar {
    schedule: LieSchedule<Lie>,
    /// Id of the chain that was given back last.
    last: AtomicU16,
}

impl Deref for Liar {
    type Target = LieSchedule<Lie>;

    fn deref(&self) -> &LieSchedule<Lie> {
        &self.schedule
    }
}

impl Liar {
    /// Creates the state of the lies; `None` for an honest device.
    pub(super) fn new(lies: &Lies) -> Option<Arc<Self>> {
        LieSchedule::new(lies).map(|schedule| Arc::new(Self { schedule, last: AtomicU16::new(0) }))
    }

    /// Returns the id and the length to report for a chain that is given back, in a queue of `size`
    /// descriptors.
    pub(super) fn used(&self, id: u16, written: u32, size: u16) -> (u32, u32) {
        let last = self.last.swap(id, Ordering::Relaxed);
        let random = self.random() as u32;
        let said = if self.triggers(Lie::IdWild) {
            [u32::from(size), 0xffff_ffff, u32::from(id) | 0x1_0000, random | u32::from(size)][random as usize >> 8 & 3]
        } else if self.triggers(Lie::IdTwice) {
            last.into()
        } else if self.triggers(Lie::IdFree) {
            (u32::from(id) + u32::from(size) / 2) % u32::from(size)
        } else if self.triggers(Lie::IdMidChain) {
            (u32::from(id) + 1) % u32::from(size)
        } else {
            id.into()
        };
        let len = if self.triggers(Lie::LengthLong) {
            [written + 0x1_0000, 0xffff_ffff, 0x8000_0000, written + 0x7fff][random as usize >> 4 & 3]
        } else if self.triggers(Lie::LengthZero) {
            0
        } else {
            written
        };
        (said, len)
    }

    /// Returns the number of buffers to report for a received frame.
    pub(super) fn buffers(&self, count: u16) -> u16 {
        if self.triggers(Lie::BuffersZero) {
            0
        } else if self.triggers(Lie::BuffersMany) {
            0xffff
        } else {
            count
        }
    }

    /// Corrupts a received frame's header.
    pub(super) fn header(&self, header: &mut [u8]) {
        if self.triggers(Lie::HeaderWild) {
            let random = self.random().to_le_bytes();
            let [flags, kind, ..] = random;
            header[0] = [1, 2, 3, flags][usize::from(flags) & 3];
            header[1] = [0, 1, 4, 3, 0x81, kind][usize::from(kind) % 6];
            header[2..10].copy_from_slice(&self.random().to_le_bytes());
        }
    }
}
