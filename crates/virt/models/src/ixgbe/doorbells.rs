//! Tail registers as memory: the driver writes them for each burst, the model polls them in each step. They are
//! in a file, so that a driver in another process can map them, and so is the word that says whether the model
//! sleeps.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ringpass_memory::{Atomics, DmaArray, DmaRegion, RegionConfig};
use ringpass_pci::registers::DeviceSleeper;
use ringpass_pci::registers::ixgbe::{RDT, TDT};

/// A cell on a cache line of its own, so that rings do not share cache lines.
#[repr(align(64))]
struct Line([AtomicU32; STRIDE / 4]);

// SAFETY: an array of 32-bit atomics that fills the 64 bytes of the line, so there is no padding.
#[allow(unsafe_code)]
unsafe impl Atomics for Line {}

/// Bytes from one cell to the next.
pub(super) const STRIDE: usize = 64;
/// Queues of each direction.
const QUEUES: usize = 128;
/// Index of the line whose first word is not 0 while the model sleeps. The cells of RDT and then of TDT come
/// before it.
const ASLEEP: usize = 2 * QUEUES;

/// The cells of all RDT and TDT registers, and the waker.
pub(super) struct Doorbells {
    lines: DmaArray<Line>,
    region: Arc<DmaRegion>,
    sleeper: DeviceSleeper,
}

impl Doorbells {
    pub(super) fn new() -> Self {
        let region = DmaRegion::new((ASLEEP + 1) * STRIDE, &RegionConfig::default());
        let region = region.expect("20 KiB of ordinary pages for the model's doorbells");
        let lines: DmaArray<Line> = DmaArray::new(&region, 0, ASLEEP + 1).expect("it fits");
        // SAFETY: the word is in `region`, which `self` keeps. Clones of the waker are only held by doorbells,
        // which keep the BAR that owns `self`.
        #[allow(unsafe_code)]
        let sleeper = unsafe { DeviceSleeper::new(NonNull::from(&lines[ASLEEP].0[0])) };
        Self {
            lines,
            region,
            sleeper: sleeper.expect("the process has descriptors and asynchronous I/O left for a doorbell"),
        }
    }

    pub(super) fn rx(&self, queue: usize) -> &AtomicU32 {
        &self.lines[queue].0[0]
    }

    pub(super) fn tx(&self, queue: usize) -> &AtomicU32 {
        &self.lines[QUEUES + queue].0[0]
    }

    /// Returns the cell of the register at an offset.
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

    pub(super) fn sleeper(&self) -> &DeviceSleeper {
        &self.sleeper
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.region.file().expect("a region without physical addresses")
    }

    pub(super) fn reset(&self) {
        self.lines[..ASLEEP].iter().for_each(|line| line.0[0].store(0, Ordering::Relaxed));
    }
}
