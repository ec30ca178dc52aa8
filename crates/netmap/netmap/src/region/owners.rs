//! Which buffers of a region are free.

use std::sync::Arc;

use crate::SharedPool;

/// Allocation state of each buffer, by index.
pub(super) enum BufferOwners {
    /// Whether each buffer is allocated. Only the region's owner changes that.
    Own(Vec<bool>),
    /// The pool that exchanges its buffers for allocated ones keeps the state.
    ZeroCopy(Arc<SharedPool>),
}

impl BufferOwners {
    /// Allocates a buffer. Returns whether it was free.
    pub(super) fn take(&mut self, buffer: u32) -> bool {
        match self {
            Self::Own(taken) => taken.get_mut(buffer as usize).is_some_and(|taken| !std::mem::replace(taken, true)),
            Self::ZeroCopy(exchange) => exchange.alloc_external(buffer),
        }
    }

    /// Frees a buffer. Returns whether it was allocated; free buffers and those of a pool are not.
    pub(super) fn free_buffer(&mut self, buffer: u32) -> bool {
        match self {
            Self::Own(taken) => taken.get_mut(buffer as usize).is_some_and(std::mem::take),
            Self::ZeroCopy(exchange) => exchange.free_external(buffer),
        }
    }

    pub(super) fn exchange(&self) -> Option<&Arc<SharedPool>> {
        match self {
            Self::Own(_) => None,
            Self::ZeroCopy(exchange) => Some(exchange),
        }
    }
}
