//! Changes that the control side sends to datapaths: ports that are added and removed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ringpass_port::{Error, RxQueue, TxQueue};
use rustix::event::{EventfdFlags, eventfd};

use crate::counters::PortCounters;
use crate::state::PortView;

/// How packets of an Rx queue are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// By a lookup of each packet's destination.
    Lookup,
    /// To this port, unchanged and without a lookup.
    Direct(usize),
}

/// One datapath's queues of a port.
pub struct DatapathQueues {
    /// Any number of Rx queues, each with how its packets are forwarded.
    pub rx: Vec<(Box<dyn RxQueue>, Forwarding)>,
    /// The Tx queue.
    pub tx: Box<dyn TxQueue>,
}

/// Replaces a receiving queue of a datapath by another one, which may contain it.
pub type ExchangeRx = Box<dyn FnMut(Box<dyn RxQueue>) -> Box<dyn RxQueue> + Send>;
/// Replaces the sending queue of a datapath, likewise.
pub type ExchangeTx = Box<dyn FnOnce(Box<dyn TxQueue>) -> Box<dyn TxQueue> + Send>;

/// Replacements for the queues of a port in one datapath, between two of its rounds.
pub struct QueueExchange {
    /// Called for each Rx queue.
    pub rx: ExchangeRx,
    /// Called for the Tx queue.
    pub tx: ExchangeTx,
}

/// A change to a datapath's ports. Changes are applied in order, at the start of a round.
pub(crate) enum Change {
    /// Adds a port to an empty slot.
    Insert { port: usize, view: Arc<PortView>, share: DatapathQueues, counters: Arc<PortCounters> },
    /// Removes the port from a slot.
    Remove { port: usize },
    /// Gives the port in a slot another view.
    View { port: usize, view: Arc<PortView> },
    /// Replaces the queues of the port in a slot.
    Exchange { port: usize, queues: QueueExchange },
}

/// Pending changes for a datapath.
pub(crate) struct Mailbox {
    changes: Mutex<Vec<Change>>,
    /// Whether there are changes; a hint that saves taking the lock.
    pending: AtomicBool,
    /// An eventfd that is readable while there are changes, to wake a sleeping datapath.
    event: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> Result<Self, Error> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| Error::os("an eventfd for a datapath", errno))?;
        Ok(Self { changes: Mutex::default(), pending: AtomicBool::new(false), event })
    }

    pub(crate) fn put(&self, change: Change) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.push(change);
        self.pending.store(true, Ordering::Relaxed);
        // The write fails only if the counter is full; then the eventfd is readable already.
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
        // The eventfd is non-blocking, and readable because `put` wrote to it.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut changes)
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
