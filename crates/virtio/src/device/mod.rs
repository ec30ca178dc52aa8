//! The device's side of virtqueues that lie in a guest's memory. The guest is not trusted: what it writes is read once and
//! checked, and a queue whose guest broke the rules stays [`Broken`].

mod cells;
mod chains;
mod inflight;
mod marks;
mod memory;
mod packed;
mod prefetch;
mod split;

use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Error, ForeignMemory};

pub use memory::{GuestMemory, GuestRegion};
pub use packed::Packed;
pub use split::Split;

/// Where a queue lies, and how it works.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Descriptors: 1 to 32,768; for split rings a power of two.
    pub size: u16,
    /// Features that were negotiated: packed, event index, indirect, in order.
    pub features: u64,
    /// Where its parts lie, as the front-end's own addresses ([`GuestRegion::user`]).
    pub descriptors: u64,
    /// Available ring, or driver's event suppression.
    pub driver: u64,
    /// Used ring, or device's event suppression.
    pub device: u64,
    /// Where it stands: split, the next available index; packed, the next available slot with its wrap counter in bit 15,
    /// and in the upper half the same of the used ones. What the inflight region and the used ring's index say goes before:
    /// after a crash the front-end does not know better, and chains that were not given back are taken again.
    pub base: u32,
    /// Where what was taken and not yet given back is noted, so that it survives this process.
    pub inflight: Option<Inflight>,
}

/// A queue's part of an inflight region.
#[derive(Clone, Debug)]
pub struct Inflight {
    /// The region.
    pub memory: Arc<ForeignMemory>,
    /// Where the queue's part begins.
    pub offset: usize,
    /// Its length.
    pub len: usize,
}

/// What the device does to a chain's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads them (the guest sends).
    Read,
    /// It writes them (the guest receives).
    Write,
}

/// Memory of the guest that was found to be its own, and in one piece here. What lies there may change at any time.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The first byte.
    pub start: NonNull<u8>,
    /// Bytes; 0 only for a chain of nothing else.
    pub len: u32,
}

// SAFETY: a pointer that only those use who know that the queue, and so the memory, is still there.
unsafe impl Send for Piece {}

/// A chain that was taken from a queue.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// What it is given back by.
    pub id: u16,
    /// Descriptors that it takes in the ring.
    pub descriptors: u16,
    /// Its first piece.
    pub first: Piece,
    /// Further ones: so many of [`Taken::pieces`], from there.
    pub more: (u32, u32),
}

impl Chain {
    /// The chain, to be given back with so many bytes written.
    #[inline]
    pub fn used(&self, written: u32) -> Used {
        Used { id: self.id, descriptors: self.descriptors, written }
    }
}

/// A chain that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// What it was taken by.
    pub id: u16,
    /// Descriptors that it takes in the ring.
    pub descriptors: u16,
    /// Bytes that were written to it.
    pub written: u32,
}

/// Chains that were taken together, in order. Made once for a queue, and used again and again: no burst allocates.
#[derive(Debug)]
pub struct Taken {
    /// The chains.
    pub chains: Vec<Chain>,
    /// Pieces behind the first ones.
    pub pieces: Vec<Piece>,
    /// Descriptors that may still be read before the burst ends.
    budget: usize,
}

/// Longest chain, in descriptors including those of indirect tables; a buffer that continues in another memory region
/// counts as another descriptor.
///
/// The specification allows as many as the queue has (2.7.5.3.1, 2.8.8), which is up to 32,768. Existing devices allow
/// 1024 (QEMU's `VIRTQUEUE_MAX_SIZE`, vhost-net's `UIO_MAXIOV`), so drivers stay below that: Linux makes chains of up to
/// `MAX_SKB_FRAGS` + 2 descriptors (19, or 47 as configured at most), DPDK of a frame's segments (255) and a header.
pub(crate) const LONGEST_CHAIN: usize = 1024;

impl Taken {
    /// Descriptors that a burst of packets may read: enough for 200 frames of Linux in 20 descriptors each.
    pub const BUDGET: usize = 4096;

    /// Creates an empty list with room for `chains` chains and for all pieces that a burst can have.
    pub fn with_capacity(chains: usize) -> Self {
        let pieces = Vec::with_capacity(Self::BUDGET + LONGEST_CHAIN);
        Self { chains: Vec::with_capacity(chains), pieces, budget: Self::BUDGET }
    }

    /// Begins a burst: removes all chains, and allows [`take`](Virtqueue::take) to read `budget` descriptors.
    ///
    /// Descriptors are what a guest's chains cost, whether they hold any bytes or not. The budget is for all calls of
    /// `take` until the next burst begins, so a loop that takes chains until there are none ends whatever the guest adds
    /// meanwhile. The chain that exceeds the budget is the last, so a burst reads at most 1024 descriptors more.
    #[inline]
    pub fn begin(&mut self, budget: usize) {
        self.clear();
        self.budget = budget;
    }

    /// Removes all chains. The burst goes on with what is left of its budget.
    #[inline]
    pub fn clear(&mut self) {
        self.chains.clear();
        self.pieces.clear();
    }

    /// Whether the budget is used up: more chains may be available than were taken.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.budget == 0
    }

    /// Charges descriptors that were read.
    #[inline(always)]
    pub(crate) fn charge(&mut self, descriptors: usize) {
        self.budget = self.budget.saturating_sub(descriptors);
    }
}

impl Default for Taken {
    /// An empty list with the budget of a burst of packets.
    fn default() -> Self {
        Self { chains: Vec::new(), pieces: Vec::new(), budget: Self::BUDGET }
    }
}

/// What a guest did that guests may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It made more available than there can be.
    #[error("the guest made {0} chains available at once, more than the ring has")]
    Jump(u16),
    /// It named a descriptor, or a buffer, that there is not.
    #[error("the guest made {0} available, which the ring does not have")]
    Id(u16),
    /// It named one that the device has.
    #[error("the guest made {0} available, which it has not got back")]
    Twice(u16),
    /// A chain leads out of its table.
    #[error("the guest made a chain that goes on at {0}, where there is no descriptor")]
    Next(u16),
    /// A chain has no end, or one too far away.
    #[error("the guest made a chain of more than 1024 descriptors or more than the ring has, or a loop")]
    Long,
    /// A chain begins in a packed ring, and does not go on.
    #[error("the guest made a part of a chain available")]
    Part,
    /// A chain is for the other direction, in whole or in part.
    #[error("the guest made a chain whose buffers the device may not use as this queue's")]
    Access,
    /// Its length is none.
    #[error("the guest made a chain of 4 GiB or more")]
    Sum,
    /// It lies elsewhere.
    #[error("the guest made {1} bytes at {0:#x} available, which are not in its memory")]
    Address(u64, u32),
    /// A table where there may be none: not agreed on, in a table, in the middle of a chain.
    #[error("the guest made an indirect table where there may be none")]
    Table,
    /// A table that is empty, that has a part of a descriptor, or more than the ring.
    #[error("the guest made an indirect table of {0} bytes")]
    TableLen(u32),
}

/// The device's side of a queue.
///
/// # Safety
/// Pieces that [`take`](Self::take) hands out lie in the queue's memory, which the queue keeps until it is dropped or given
/// other memory.
pub unsafe trait Virtqueue: Send + Sized {
    /// A queue in a guest's memory. It asks for no notifications.
    fn new(setup: &Setup, memory: &Arc<GuestMemory>) -> Result<Self, Error>;

    /// Another table of the guest's memory, in which the queue goes on.
    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), Error>;

    /// Takes up to `most` chains that are available, in order, behind those in `taken`. Returns how many: fewer if the
    /// burst's [budget](Taken::begin) is used up. A chain that the guest may not make breaks the queue; what was taken
    /// before it in the same call is handed out first.
    fn take(&mut self, access: Access, most: usize, taken: &mut Taken) -> Result<usize, Broken>;

    /// Takes the last `n` chains out of `taken` and puts them back, as if they had not been taken from the queue. They
    /// are the last that were.
    fn put_back(&mut self, taken: &mut Taken, n: usize);

    /// Gives chains back: in any order; with IN_ORDER in that of taking.
    fn give_all(&mut self, used: impl Iterator<Item = Used>);

    /// Gives all chains of one descriptor back that were taken and not given back, with nothing written to them.
    fn give_rest(&mut self);

    /// Shows the guest what was given back since the last time. Whether it wants to be interrupted for it.
    fn publish(&mut self) -> bool;

    /// Asks to be notified of the next chain. Whether some are available already.
    fn arm(&mut self) -> bool;

    /// Asks for no notifications.
    fn disarm(&mut self);

    /// Where it stands, once all that was taken was given back or put back.
    fn base(&self) -> u32;
}
