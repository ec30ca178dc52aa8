//! Tracks the chains that were taken and not given back, in memory that the front-end keeps, so that another
//! process can continue where this one ended (QEMU, *docs/interop/vhost-user.rst*, "Inflight I/O tracking").
//!
//! The structures of the region are accessed as 64-bit words, each written in one store, because this process
//! may end between any two stores. The contents of a region are trusted no more than a ring.

mod packed;
mod split;

use std::sync::atomic::Ordering;

use ringpass_memory::{Error, ForeignMemory};

use super::Inflight;
use super::cells::SharedArray;
use super::chains::RawDescriptor;

pub(super) use packed::{InflightChain, PackedInflight};
pub(super) use split::SplitInflight;

/// Version of the structures; 0 means memory that was never used.
const VERSION: u16 = 1;

type Region = SharedArray<RawDescriptor, ForeignMemory>;

#[inline(always)]
fn store(word: &std::sync::atomic::AtomicU64, value: u64) {
    // Release: earlier writes must be visible before this one.
    word.store(value, Ordering::Release);
}

/// Returns the header word and the number of descriptors, which the region has room for; `None` if it was never
/// used.
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

/// Chains that another process had taken, in the order in which it took them, and a position among them.
pub(super) struct InflightReplay<T> {
    chains: Vec<T>,
    next: usize,
    /// Number of chains that this process took after all of these and that may be put back.
    behind: u64,
}

impl<T> InflightReplay<T> {
    pub(super) fn new(chains: Vec<T>) -> Self {
        Self { chains, next: 0, behind: 0 }
    }

    /// Returns the next chain, if any is left.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<&T> {
        self.chains.get(self.next)
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Counts chains that this process took itself.
    #[inline(always)]
    pub(super) fn taken(&mut self, behind: usize) {
        self.behind += behind as u64;
    }

    /// Moves back by one chain. Returns whether that was one of the replayed chains.
    pub(super) fn put_back(&mut self) -> bool {
        let own = self.behind > 0;
        self.behind -= u64::from(own);
        self.next -= usize::from(!own);
        !own
    }
}
