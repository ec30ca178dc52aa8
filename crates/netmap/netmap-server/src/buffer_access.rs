//! How the serving side accesses the buffers of slots.

use std::sync::Arc;

use ringpass_netmap::layout::RESERVED_BUFFERS;
use ringpass_netmap::{Buffers, Region, SharedPool};

/// Access to the buffers of slots: by copying, or by exchange.
#[derive(Clone)]
pub(crate) enum BufferAccess {
    /// Frames are copied in and out.
    Copied(Buffers),
    /// Nothing is copied: buffers of slots are exchanged for those of packets, whose pool lies in the same
    /// memory.
    ZeroCopy(Arc<SharedPool>),
}

impl From<Buffers> for BufferAccess {
    fn from(buffers: Buffers) -> Self {
        Self::Copied(buffers)
    }
}

impl BufferAccess {
    /// Returns how the buffers of a region are accessed.
    pub(crate) fn of(region: &Region) -> Self {
        match region.exchange() {
            Some(exchange) => Self::ZeroCopy(exchange.clone()),
            None => Buffers::of(region.memory(), region.pools()).expect("a region has its buffers").into(),
        }
    }

    /// Largest length in bytes that a slot can state for a buffer.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Copied(buffers) => buffers.size(),
            Self::ZeroCopy(exchange) => exchange.pool().buffer_size(),
        }
    }

    /// Whether `buffer` is a valid, unreserved index and `len` bytes fit into it.
    pub(crate) fn holds(&self, buffer: u32, len: usize) -> bool {
        match self {
            Self::Copied(buffers) => buffers.holds(buffer, len),
            Self::ZeroCopy(exchange) => {
                (RESERVED_BUFFERS..exchange.buffers() as u32).contains(&buffer) && len <= self.size()
            }
        }
    }
}
