//! The tail registers, as memory: the driver writes them for each burst, the model looks at them in each step. They are
//! in a file, so that a driver in another process can map them; and so is the word that says whether the model sleeps.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ringpass_memory::{Atomics, DmaArray, DmaRegion, RegionConfig};
use ringpass_registers::Sleeper;
use ringpass_registers::ixgbe::{RDT, TDT};

/// A cell on a cache line of its own, so that the rings do not disturb each other.
#[repr(align(64))]
struct Line([AtomicU32; STRIDE / 4]);

// SAFETY: atomic integers that fill the line.
#[allow(unsafe_code)]
unsafe impl Atomics for Line {}

/// Bytes from one cell to the next.
pub(super) const STRIDE: usize = 64;
/// Queues of each direction.
const QUEUES: usize = 128;
/// The line whose first word says that the model sleeps; the cells of RDT and then of TDT lie before it.
const ASLEEP: usize = 2 * QUEUES;

/// The cells of all RDT and TDT registers, and the bell.
pub(super) struct Doorbells {
    lines: DmaArray<Line>,
    region: Arc<DmaRegion>,
    sleeper: Sleeper,
}

impl Doorbells {
    pub(super) fn new() -> Self {
        let region = DmaRegion::new((ASLEEP + 1) * STRIDE, &RegionConfig::default());
        let region = region.expect("20 KiB of ordinary pages for the model's doorbells");
        let lines: DmaArray<Line> = DmaArray::new(&region, 0, ASLEEP + 1).expect("it fits");
        // SAFETY: the word is in the region, which `self` keeps; clones of the bell go only to doorbells, which keep the
        // BAR that `self` belongs to.
        #[allow(unsafe_code)]
        let sleeper = unsafe { Sleeper::new(NonNull::from(&lines[ASLEEP].0[0])) };
        Self {
            lines,
            region,
            sleeper: sleeper.expect("the process has descriptors and asynchronous I/O left for a bell"),
        }
    }

    pub(super) fn rx(&self, queue: usize) -> &AtomicU32 {
        &self.lines[queue].0[0]
    }

    pub(super) fn tx(&self, queue: usize) -> &AtomicU32 {
        &self.lines[QUEUES + queue].0[0]
    }

    /// The cell of the register at an offset.
    pub(super) fn at(&self, offset: u32) -> Option<&AtomicU32> {
        let index = |first: u32, count: usize| {
            let distance = offset.checked_sub(first)?;
            let index = (distance / 0x40) as usize;
            (distance.is_multiple_of(0x40) && index < count).then_some(index)
        };
        let low = index(RDT.at(0).offset, 64).map(|queue| self.rx(queue));
        let high = || index(RDT.at(64).offset, 64).map(|queue| self.rx(64 + queue));
        low.or_else(high).or_else(|| index(TDT.at(0).offset, QUEUES).map(|queue| self.tx(queue)))
    }

    pub(super) fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.region.file().expect("a region without physical addresses")
    }

    pub(super) fn reset(&self) {
        self.lines[..ASLEEP].iter().for_each(|line| line.0[0].store(0, Ordering::Relaxed));
    }
}
