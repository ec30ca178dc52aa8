//! Memory that devices may reach: regions, mempools, packets and bursts.
//!
//! A [`DmaRegion`] is memory with an address on the device's side (its IOVA). A [`Mempool`] cuts a region into
//! buffers of one size. A [`Buffer`] is a handle to one of them, held by
//! value, and a [`Packet`] one with a frame in it; a [`Burst`] is a fixed array of them on
//! the stack. Nothing about a packet is kept inside its buffer.
//!
//! Queues take buffers through a [`Cache`] and give them back through a [`Reclaimer`]; both exchange up to
//! [`MAGAZINE`] of them at a time with the pool's shared depot, without locks. Any thread may free a packet.

mod alloc;
mod array;
mod assembly;
mod burst;
mod cache;
mod copy;
mod depot;
mod deque;
mod edit;
mod error;
mod exchange;
mod flags;
mod foreign;
mod huge_pages;
mod lending;
#[cfg(miri)]
mod miri;
mod one_by_one;
mod owners;
mod packet;
mod physical;
mod pool;
mod raw_bytes;
mod region;
mod segments;
mod sigbus;
mod slots;
mod sync;
mod usage;

pub use array::{Atomics, DmaArray};
pub use assembly::Assembly;
pub use burst::{Burst, MAX_BATCH};
pub use cache::{Cache, Reclaimer};
pub use copy::copy;
pub use depot::MAGAZINE;
pub use deque::Drain;
pub use error::Error;
pub use exchange::{Claim, Exchange, ExchangeConfig};
pub use flags::{Flags, Headers, L4};
pub use foreign::ForeignMemory;
pub use huge_pages::huge_pages_free;
pub use lending::{Borrower, Grant, Lender, Lending, Lent, Loan, Loans, Settled, Settling};
pub use one_by_one::Packets;
pub use packet::{Buffer, Packet};
pub use pool::{HEADROOM, Mempool, MempoolConfig};
pub use raw_bytes::RawBytes;
pub use region::{Addressing, DmaRegion, PageSize, RegionConfig};
