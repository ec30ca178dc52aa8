//! What was taken and not given back, noted in memory that the front-end keeps, so that another process can go on where
//! this one ended (QEMU, *docs/interop/vhost-user.rst*, "Inflight I/O tracking").
//!
//! The regions' structures are accessed as words of 64 bits, each of which is written at once: this process may end
//! between any two of them. What stands in a region is trusted no more than a ring.

mod packed;
mod split;

use std::sync::atomic::Ordering;

use ringpass_memory::{Error, ForeignMemory};

use super::Inflight;
use super::cells::Cells;
use super::chains::Cell;

pub(super) use packed::{Lost, PackedLog};
pub(super) use split::SplitLog;

/// The version of the structures; 0 is memory that was never used.
const VERSION: u16 = 1;

type Region = Cells<Cell, ForeignMemory>;

#[inline(always)]
fn store(word: &std::sync::atomic::AtomicU64, value: u64) {
    // Release: not before what was written before.
    word.store(value, Ordering::Release);
}

/// Version and number of descriptors, which the region has room for.
fn header(region: &Region, size: u16, room: usize) -> Result<Option<(u64, u16)>, Error> {
    let word = region[0][1].load(Ordering::Acquire);
    let (version, count) = (word as u16, (word >> 16) as u16);
    match version {
        0 => Ok(None),
        VERSION if count >= size && usize::from(count) <= room => Ok(Some((word, count))),
        _ => Err(Error::Config("an inflight region of another version, or for another size of the queue")),
    }
}

fn map(inflight: &Inflight, header: usize) -> Result<Region, Error> {
    let region = Region::of(&inflight.memory, inflight.offset, inflight.len)?;
    let whole = region.len() > header;
    whole.then_some(region).ok_or(Error::Config("an inflight region that is too small for its queue"))
}

/// Chains that another process had taken, in the order in which it took them; and which of them are next.
pub(super) struct Again<T> {
    chains: Vec<T>,
    next: usize,
    /// Chains of this process's own that were taken behind all of them, and may be put back.
    behind: u64,
}

impl<T> Again<T> {
    pub(super) fn new(chains: Vec<T>) -> Self {
        Self { chains, next: 0, behind: 0 }
    }

    /// The next one, as long as there are any.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<&T> {
        self.chains.get(self.next)
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Chains of this process's own were taken.
    #[inline(always)]
    pub(super) fn taken(&mut self, behind: usize) {
        self.behind += behind as u64;
    }

    /// The last chain is put back; whether it was one of these.
    pub(super) fn put_back(&mut self) -> bool {
        let own = self.behind > 0;
        self.behind -= u64::from(own);
        self.next -= usize::from(!own);
        !own
    }
}
