//! What the control side has a datapath do, on whichever thread that runs: ports that come and go.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ringpass_port::{Error, RxQueue, TxQueue};
use rustix::event::{EventfdFlags, eventfd};

use crate::counters::PortCounters;
use crate::datapath::Way;

/// The queues that a datapath has of a port.
pub struct Share {
    /// Any number of Rx queues, and where their packets go.
    pub rx: Vec<(Box<dyn RxQueue>, Way)>,
    /// The Tx queue.
    pub tx: Box<dyn TxQueue>,
}

/// One change. They are made in order, between two rounds.
pub(crate) enum Change {
    /// A port comes to an empty place.
    Insert { port: usize, share: Share, counters: Arc<PortCounters> },
    /// The port there goes.
    Remove { port: usize },
}

/// Changes on their way to a datapath.
pub(crate) struct Mailbox {
    changes: Mutex<Vec<Change>>,
    /// There are some: a hint to look.
    pending: AtomicBool,
    /// Readable as long as there are some; for one that sleeps.
    event: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> Result<Self, Error> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| Error::Os { what: "an eventfd for a datapath".into(), source: errno.into() })?;
        Ok(Self { changes: Mutex::default(), pending: AtomicBool::new(false), event })
    }

    pub(crate) fn put(&self, change: Change) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.push(change);
        self.pending.store(true, Ordering::Relaxed);
        // It fails only if the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn take(&self) -> Vec<Change> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::Relaxed);
        // Does not wait, and is readable, as it was written before.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut changes)
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
