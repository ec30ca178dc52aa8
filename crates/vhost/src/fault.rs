//! What a guest did that guests may not do.

use ringpass_virtio::device::Broken;

/// Ends its session.
#[derive(Debug, PartialEq)]
pub(crate) enum Fault {
    /// The ring's rules.
    Ring(Broken),
    /// A chain has no room for the header of a frame.
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
