//! Protocol violations of a guest.

use ringpass_virtio::device::Broken;

/// Violation that ends the guest's session.
#[derive(Debug, PartialEq)]
pub(crate) enum Fault {
    /// The ring breaks the rules of virtqueues.
    Ring(Broken),
    /// A chain of this many bytes is too short for a virtio-net header.
    NoHeader(usize),
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Ring(broken)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ring(broken) => write!(f, "{broken}"),
            Self::NoHeader(len) => write!(f, "a chain of {len} bytes is too short for the header of a frame"),
        }
    }
}
