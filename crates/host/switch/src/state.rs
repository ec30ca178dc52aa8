//! State that datapaths and the control side share.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Instant;

use crate::flows::Epoch;
use crate::rate_limiter::RateLimiter;
use crate::table::Table;

/// A port as datapaths see it. It is theirs from the time when the port is added, whatever becomes of its slot.
pub(crate) struct PortView {
    /// The VLAN of frames that arrive or leave without a tag.
    pub(crate) untagged: u16,
    /// The port refuses frames with a tag.
    pub(crate) access: bool,
    /// Ports that it may send to, up or not: all except itself and its isolation group.
    pub(crate) reach: AtomicU64,
    /// The only stations that may send from this port, sorted; empty for all.
    pub(crate) sources: Box<[u64]>,
    pub(crate) rate_limiter: RateLimiter,
    /// The port accepts packets in lent buffers.
    pub(crate) lends: bool,
    /// Stations are learned at the port.
    pub(crate) learns: bool,
}

/// State shared by datapaths and the control side. Sets of ports are words with one bit per port.
pub(crate) struct Shared {
    /// Ports that are members of each VLAN.
    pub(crate) members: Box<[AtomicU64; 4096]>,
    pub(crate) table: Table,
    /// See [`Config::any_source`].
    pub(crate) any_source: bool,
    /// Ports that are present and have a link.
    pub(crate) up: AtomicU64,
    pub(crate) start: Instant,
    /// Seconds since `start`, wrapping.
    pub(crate) now: AtomicU16,
}

impl Shared {
    /// Marks a port as up, because it has sent something or its queue reports a link. The control side clears
    /// the mark if the port has no link.
    #[inline]
    pub(crate) fn mark_up(&self, port: usize) {
        if self.up.load(Ordering::Relaxed) >> port & 1 == 0 {
            self.up.fetch_or(1 << port, Ordering::Relaxed);
        }
    }

    /// Returns what the verdicts of a datapath with these ports depend on.
    #[inline]
    pub(crate) fn epoch(&self, present: u64) -> Epoch {
        Epoch {
            generation: self.table.generation(),
            up: self.up.load(Ordering::Relaxed),
            present,
            now: self.now.load(Ordering::Relaxed),
        }
    }

    /// Forgets the stations learned at a port. Returns how many entries are left in the table.
    pub(crate) fn forget(&self, port: usize) -> usize {
        self.table.retain(self.now.load(Ordering::Relaxed), |of, _| of != port)
    }
}
