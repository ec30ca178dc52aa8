//! Which rings of a native port programs have.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Which rings of a native port programs have. Set by the control side, read by the forwarder once a round.
#[derive(Default)]
pub(super) struct UseOfRings {
    own: AtomicBool,
    host: AtomicBool,
}

impl UseOfRings {
    /// Sets whether programs have rings of the port, and rings of the host's stack.
    pub(super) fn set(&self, own: bool, host: bool) {
        self.own.store(own, Relaxed);
        self.host.store(host, Relaxed);
    }

    /// Returns whether programs have rings of the port.
    pub(super) fn own(&self) -> bool {
        self.own.load(Relaxed)
    }

    /// Returns whether programs have rings of the host's stack.
    pub(super) fn host(&self) -> bool {
        self.host.load(Relaxed)
    }
}
