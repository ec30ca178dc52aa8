//! Which buffers of a region are free.

use std::sync::Arc;

use ringpass_memory::Exchange;

/// By number.
pub(super) enum Books {
    /// Whether a buffer is taken. The region's owner alone changes that.
    Own(Vec<bool>),
    /// A pool exchanges its buffers for those that are taken.
    Exchanged(Arc<Exchange>),
}

impl Books {
    /// A free buffer is taken. Whether it was free.
    pub(super) fn take(&mut self, buffer: u32) -> bool {
        match self {
            Self::Own(taken) => taken.get_mut(buffer as usize).is_some_and(|taken| !std::mem::replace(taken, true)),
            Self::Exchanged(exchange) => exchange.lend(buffer),
        }
    }

    /// What was taken is free again. Whether it was taken: not what is free, or a pool's.
    pub(super) fn give_back(&mut self, buffer: u32) -> bool {
        match self {
            Self::Own(taken) => taken.get_mut(buffer as usize).is_some_and(std::mem::take),
            Self::Exchanged(exchange) => exchange.take_back(buffer),
        }
    }

    pub(super) fn exchange(&self) -> Option<&Arc<Exchange>> {
        match self {
            Self::Own(_) => None,
            Self::Exchanged(exchange) => Some(exchange),
        }
    }
}
