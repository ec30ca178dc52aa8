//! What can go wrong with ports, and what helps.

use std::io;

/// Why a port could not be opened, or is gone: the cause and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address that names no port.
    #[error("{0}")]
    Address(String),
    /// Anything else that has no better home; the text says cause and remedy.
    #[error("{0}")]
    Other(String),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried, with the remedy where one is known.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Memory for packets or rings.
    #[error(transparent)]
    Memory(#[from] ringpass_memory::Error),
}

impl Error {
    /// Of a port that cannot steer frames to queues ([`Port::steer`](crate::Port::steer)).
    pub fn no_steering(port: &str) -> Self {
        Self::Other(format!("{port} cannot steer frames to queues; only network cards can"))
    }

    /// Of a queue that cannot receive into a guest's buffers ([`RxQueue::borrow_from`](crate::RxQueue::borrow_from)).
    pub fn no_borrowing() -> Self {
        Self::Other("only queues of Intel's cards and of other guests can be mapped to a guest's".into())
    }
}
