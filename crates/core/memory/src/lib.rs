//! Memory that devices may access: DMA regions, mempools, packets and bursts.
//!
//! A [`DmaRegion`] is memory with an address on the device's side (its IOVA). A [`Mempool`] cuts a region into
//! buffers of one size. A [`Buffer`] is an owning handle to one of them, and a [`Packet`] is a buffer with a
//! frame in it. A [`Burst`] is a fixed array of packets on the stack. Metadata of a packet is never kept inside
//! its buffer.
//!
//! Queues take buffers through a [`Cache`] and return them through a [`Reclaimer`]. Both exchange up to
//! [`MAGAZINE`] buffers at a time with the pool's shared depot, which is lock-free. Any thread may free a
//! packet.

mod access;
mod alloc;
mod array;
mod assembly;
mod burst;
mod cache;
mod copy;
mod depot;
mod deque;
mod dma_map;
mod error;
mod flags;
mod foreign;
mod frame_batch;
mod lent;
mod memory;
#[cfg(miri)]
mod miri;
mod out_of_order;
mod packet;
mod page_size;
mod physical;
mod pool;
mod prefetch;
mod raw_bytes;
mod region;
mod request;
mod shared;
mod sigbus;
mod swap;
mod sync;
mod usage;
mod vector;
mod vector_ring;

pub use access::Access;
pub use array::{Atomics, DmaArray};
pub use assembly::Assembly;
pub use burst::{Burst, MAX_BATCH};
pub use cache::{Cache, Reclaimer};
pub use copy::copy;
pub use depot::MAGAZINE;
pub use deque::Drain;
pub use dma_map::{DmaMap, DmaMapError, DmaMapFault, LookupHint, Word};
pub use error::Error;
pub use flags::{Flags, Headers, L4};
pub use foreign::ForeignMemory;
pub use frame_batch::FrameBatch;
pub use lent::{Completion, Completions, LentCache, LentPool, LentPoolId, Loan, Loans};
pub use memory::{Cells, Memory};
pub use out_of_order::Packets;
pub use packet::{Buffer, Packet};
pub use page_size::{PageSize, huge_pages_free};
pub use pool::{HEADROOM, Mempool, MempoolConfig, PAGE_BUFFER_SIZE};
pub use prefetch::prefetch;
pub use raw_bytes::RawBytes;
pub use region::{Addressing, ContiguousRange, DmaRegion, RegionConfig};
pub use request::Request;
pub use swap::{SwapPool, SwapPoolConfig};
pub use vector::{Avx2, Four};
pub use vector_ring::{read_descriptors, read_numbers, read_pairs, write_descriptors};
