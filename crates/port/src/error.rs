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
