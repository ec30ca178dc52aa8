//! Stations that are new at a port, for a control plane that tells others of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use ringpass_port::{Error, MacAddress};
use rustix::event::{EventfdFlags, eventfd};

/// A station that was learned at a port where it was not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The station's address.
    pub mac: MacAddress,
    /// Its VLAN; 0 for untagged frames.
    pub vlan: u16,
    /// The port.
    pub port: usize,
}

/// Most arrivals that wait to be read.
const MOST: usize = 4096;

/// State of both sides.
struct Bell {
    /// Readable while there is something to read.
    event: OwnedFd,
    /// Set if `event` is.
    rung: AtomicBool,
    /// Set if arrivals were lost since they were last read.
    lost: AtomicBool,
}

/// The side of the table. Datapaths record in it without locks of ours and without waiting.
pub(crate) struct Journal {
    arrivals: SyncSender<Arrival>,
    bell: Arc<Bell>,
}

impl Journal {
    /// Creates both sides. Fails if the process has no file descriptor left.
    pub(crate) fn new() -> Result<(Self, Arrivals), Error> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| Error::os("an eventfd for new stations", errno))?;
        let bell = Arc::new(Bell { event, rung: AtomicBool::new(false), lost: AtomicBool::new(false) });
        let (arrivals, receiver) = sync_channel(MOST);
        Ok((Self { arrivals, bell: bell.clone() }, Arrivals { arrivals: receiver, bell }))
    }

    #[cold]
    pub(crate) fn record(&self, arrival: Arrival) {
        match self.arrivals.try_send(arrival) {
            Err(TrySendError::Disconnected(_)) => return,
            Err(TrySendError::Full(_)) => self.bell.lost.store(true, Ordering::Release),
            Ok(()) => {}
        }
        if !self.bell.rung.swap(true, Ordering::AcqRel) {
            // The write fails only if the counter is full; then the eventfd is readable already.
            let _ = rustix::io::write(&self.bell.event, &1u64.to_ne_bytes());
        }
    }
}

/// Stations that are new at a port, in the order in which each datapath has learned them. Its descriptor is readable while there are some.
pub struct Arrivals {
    arrivals: Receiver<Arrival>,
    bell: Arc<Bell>,
}

impl Arrivals {
    /// Passes those that were not read before to `each`. Returns `false` if some were lost, as they came faster than they were read: the
    /// [table](crate::Switch::table) has them.
    pub fn read(&self, each: impl FnMut(Arrival)) -> bool {
        // Cleared before the arrivals are read: one that comes later rings again.
        let _ = rustix::io::read(&self.bell.event, &mut [0; 8]);
        self.bell.rung.store(false, Ordering::Release);
        let known = !self.bell.lost.swap(false, Ordering::AcqRel);
        // Datapaths go on adding while this reads.
        self.arrivals.try_iter().take(MOST).for_each(each);
        known
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }
}
