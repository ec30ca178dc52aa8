//! How whoever serves rings reaches the buffers of their slots.

use std::sync::Arc;

use ringpass_memory::Exchange;

use crate::Buffers;
use crate::layout::RESERVED_BUFFERS;

/// See the module.
#[derive(Clone)]
pub enum Place {
    /// Frames are copied in and out.
    Copied(Buffers),
    /// Nobody copies. Buffers are exchanged for those of packets of a pool that lies in the same memory.
    Exchanged(Arc<Exchange>),
}

impl From<Buffers> for Place {
    fn from(buffers: Buffers) -> Self {
        Self::Copied(buffers)
    }
}

impl Place {
    /// Bytes of a buffer that a slot can speak of.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Copied(buffers) => buffers.size(),
            Self::Exchanged(exchange) => exchange.pool().buffer_size(),
        }
    }

    /// Whether somebody may have such a buffer, and so many bytes fit into it.
    pub(crate) fn holds(&self, buffer: u32, len: usize) -> bool {
        match self {
            Self::Copied(buffers) => buffers.holds(buffer, len),
            Self::Exchanged(exchange) => {
                (RESERVED_BUFFERS..exchange.buffers() as u32).contains(&buffer) && len <= self.size()
            }
        }
    }
}
