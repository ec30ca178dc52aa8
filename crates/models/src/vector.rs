//! Where a card's interrupts are heard.

use std::os::fd::OwnedFd;

use ringpass_vfio_user::Signal;

/// What a vector is signalled by.
pub enum Vector {
    /// An eventfd of this process's own that does not block.
    Own(OwnedFd),
    /// One of another process.
    Theirs(Signal),
}

impl Vector {
    pub(crate) fn raise(&self) {
        match self {
            // It fails only if the counter is full, and then it has been heard.
            Self::Own(event) => _ = rustix::io::write(event, &1u64.to_ne_bytes()),
            Self::Theirs(signal) => signal.raise(),
        }
    }
}

impl From<OwnedFd> for Vector {
    fn from(event: OwnedFd) -> Self {
        Self::Own(event)
    }
}
