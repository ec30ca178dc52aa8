//! The device's side of virtqueues in a guest's memory. The guest is not trusted: what it writes is read once
//! and checked. Once the guest has broken the rules, its queue stays [`Broken`].

mod cells;
mod chains;
mod inflight;
mod marks;
mod memory;
mod packed;
mod prefetch;
mod split;
mod vector;

use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Avx2, Error, ForeignMemory};

pub use memory::{GuestMemory, GuestRegion};
pub use packed::Packed;
pub use split::Split;

/// Location and configuration of a queue.
#[derive(Clone, Debug)]
pub struct VringConfig {
    /// Number of descriptors: 1 to 32,768; a power of two for split rings.
    pub size: u16,
    /// Negotiated features, of which a queue uses `EVENT_IDX`, `INDIRECT_DESC` and `IN_ORDER`.
    pub features: u64,
    /// Address of the descriptor table or packed ring. This address and the next two are the front-end's own
    /// ([`GuestRegion::user`]).
    pub descriptors: u64,
    /// Address of the available ring, or of the driver's event suppression.
    pub driver: u64,
    /// Address of the used ring, or of the device's event suppression.
    pub device: u64,
    /// Saved position. Split: the next available index. Packed: the next available slot with its wrap counter
    /// in bit 15, and the same for used slots in the upper 16 bits. The inflight region and the used ring's
    /// index take precedence: after a crash the front-end has no newer position, and chains that were not given
    /// back are taken again.
    pub base: u32,
    /// Memory that tracks the chains taken and not yet given back, and that survives this process.
    pub inflight: Option<Inflight>,
    /// With it, chains are taken four at a time.
    pub avx2: Option<Avx2>,
}

/// A queue's part of an inflight region.
#[derive(Clone, Debug)]
pub struct Inflight {
    /// The memory of the region.
    pub memory: Arc<ForeignMemory>,
    /// Offset of the queue's part in bytes.
    pub offset: usize,
    /// Size of the queue's part in bytes.
    pub len: usize,
}

/// Kind of access that the device has to a chain's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    /// The device reads them (the guest transmits).
    Read,
    /// The device writes them (the guest receives).
    Write,
}

/// A piece of guest memory, checked to belong to the guest and contiguous in this process. Its contents may
/// change at any time.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    /// Address of the first byte.
    pub start: NonNull<u8>,
    /// Size in bytes; 0 only in a chain without any bytes.
    pub len: u32,
}

// SAFETY: the pointer is not tied to a thread. It may only be dereferenced (which is unsafe) while the queue
// keeps the memory, as the contract of `Virtqueue` says.
unsafe impl Send for Piece {}

/// A chain that was taken from a queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Chain {
    /// Id by which the chain is given back.
    pub id: u16,
    /// Number of descriptors that it takes in the ring.
    pub descriptors: u16,
    /// The first piece.
    pub first: Piece,
    /// Further pieces: start index in [`ChainBatch::pieces`], and their number.
    pub more: (u32, u32),
}

impl Chain {
    /// Returns the chain as used, with the number of bytes written to it.
    #[inline]
    pub fn used(&self, written: u32) -> Used {
        Used { id: self.id, descriptors: self.descriptors, written }
    }
}

/// A chain that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Id by which the chain was taken.
    pub id: u16,
    /// Number of descriptors that it takes in the ring.
    pub descriptors: u16,
    /// Number of bytes written to it.
    pub written: u32,
}

/// Chains that were taken together, in order. Create one for a queue and reuse it, so that no burst allocates.
#[derive(Debug)]
pub struct ChainBatch {
    /// The chains.
    pub chains: Vec<Chain>,
    /// All pieces except the first of each chain.
    pub pieces: Vec<Piece>,
    /// Number of descriptors that may still be read in this burst.
    budget: usize,
}

/// Longest chain, in descriptors including those of indirect tables. A buffer that continues in another memory
/// region counts as another descriptor.
///
/// The specification allows as many as the queue has (2.7.5.3.1, 2.8.8), which is up to 32,768. Existing
/// devices allow 1024 (QEMU's `VIRTQUEUE_MAX_SIZE`, vhost-net's `UIO_MAXIOV`), so drivers stay below that:
/// Linux makes chains of up to `MAX_SKB_FRAGS` + 2 descriptors (19, or at most 47, depending on its
/// configuration), DPDK of a frame's segments (255) and a header.
pub(crate) const MAX_CHAIN_LEN: usize = 1024;

impl ChainBatch {
    /// Descriptors that a burst of packets may read: enough for 200 frames of Linux in 20 descriptors each.
    pub const BUDGET: usize = 4096;

    /// Creates an empty list with room for `chains` chains and for all pieces that a burst can have.
    pub fn with_capacity(chains: usize) -> Self {
        let pieces = Vec::with_capacity(Self::BUDGET + MAX_CHAIN_LEN);
        Self { chains: Vec::with_capacity(chains), pieces, budget: Self::BUDGET }
    }

    /// Begins a burst: removes all chains, and allows [`take`](Virtqueue::take) to read `budget` descriptors.
    ///
    /// Each descriptor of a chain counts, whether it holds any bytes or not. The budget applies to all calls of `take`
    /// until the next burst begins, so a loop that takes chains until there are none ends, whatever the guest adds
    /// meanwhile. The chain that exceeds the budget is the last, so a burst reads at most 1024 descriptors more.
    #[inline]
    pub fn begin(&mut self, budget: usize) {
        self.clear();
        self.budget = budget;
    }

    /// Removes all chains. The burst continues with the rest of its budget.
    #[inline]
    pub fn clear(&mut self) {
        self.chains.clear();
        self.pieces.clear();
    }

    /// Returns whether the budget is used up: then more chains may be available than were taken.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.budget == 0
    }

    /// Charges descriptors that were read to the budget.
    #[inline(always)]
    pub(crate) fn charge(&mut self, descriptors: usize) {
        self.budget = self.budget.saturating_sub(descriptors);
    }
}

impl Default for ChainBatch {
    /// Creates an empty list with the budget of a burst of packets.
    fn default() -> Self {
        Self { chains: Vec::new(), pieces: Vec::new(), budget: Self::BUDGET }
    }
}

/// Violation of the rules by a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The guest made more chains available than the ring can hold.
    #[error("the guest made {0} chains available at once, more than the ring has")]
    IndexJump(u16),
    /// The guest named a descriptor or a buffer that does not exist.
    #[error("the guest made {0} available, which the ring does not have")]
    BadId(u16),
    /// The guest named one that the device already has.
    #[error("the guest made {0} available, which it has not got back")]
    DuplicateId(u16),
    /// A chain continues outside of its table.
    #[error("the guest made a chain that goes on at {0}, where there is no descriptor")]
    BadNext(u16),
    /// A chain does not end, or is too long.
    #[error("the guest made a chain of more than 1024 descriptors or more than the ring has, or a loop")]
    ChainTooLong,
    /// In a packed ring, the first descriptors of a chain are available and the rest are not.
    #[error("the guest made a part of a chain available")]
    IncompleteChain,
    /// A chain is, in whole or in part, for the other direction.
    #[error("the guest made a chain whose buffers the device may not use as this queue's")]
    DeviceAccess,
    /// The length of a chain does not fit in 32 bits.
    #[error("the guest made a chain of 4 GiB or more")]
    LengthOverflow,
    /// A buffer is outside of the guest's memory.
    #[error("the guest made {1} bytes at {0:#x} available, which are not in its memory")]
    Address(u64, u32),
    /// An indirect table in an invalid place: not negotiated, inside another table, or in the middle of a
    /// chain.
    #[error("the guest made an indirect table where there may be none")]
    Table,
    /// An indirect table that is empty, not a whole number of descriptors, or longer than the ring.
    #[error("the guest made an indirect table of {0} bytes")]
    BadTableLen(u32),
}

/// The device's side of a queue.
///
/// # Safety
/// The pieces that [`take`](Self::take) hands out must be inside the queue's memory, and the queue must keep
/// that memory until it is dropped or given other memory.
pub unsafe trait Virtqueue: Send + Sized {
    /// Replaces the table of the guest's memory. The queue continues in the new one.
    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), Error>;

    /// Takes up to `most` available chains, in order, and appends them to `taken`. Returns the number taken,
    /// which is lower if the burst's [budget](ChainBatch::begin) is used up. An invalid chain breaks the queue;
    /// chains taken before it in the same call are returned first, and the next call returns the error.
    fn take(&mut self, access: DeviceAccess, most: usize, taken: &mut ChainBatch) -> Result<usize, Broken>;

    /// Removes the last `n` chains from `taken` and puts them back into the queue, as if they had not been
    /// taken. They must be the last ones that were taken from it.
    fn put_back(&mut self, taken: &mut ChainBatch, n: usize);

    /// Gives chains back, in any order; with IN_ORDER, in the order in which they were taken.
    fn push_used(&mut self, used: impl Iterator<Item = Used>);

    /// Gives back all chains that were taken and not given back, with nothing written to them. Each must take
    /// one descriptor.
    fn push_rest_unwritten(&mut self);

    /// Makes what was given back since the last call visible to the guest. Returns whether the guest wants an
    /// interrupt.
    fn publish(&mut self) -> bool;

    /// Enables notifications for the next chain. Returns whether some chains are available already.
    fn arm(&mut self) -> bool;

    /// Disables notifications.
    fn disarm(&mut self);

    /// Returns the position of the queue, once everything taken was given back or put back. See
    /// [`VringConfig::base`].
    fn base(&self) -> u32;
}

/// A queue that can be created.
pub trait CreateVirtqueue: Virtqueue {
    /// Creates a queue in a guest's memory. Notifications are disabled at first.
    fn new(setup: &VringConfig, memory: &Arc<GuestMemory>) -> Result<Self, Error>;
}
