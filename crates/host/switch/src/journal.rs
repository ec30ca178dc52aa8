//! News from datapaths, for a control plane that tells others of it: stations that are new at a port, and addresses of stations.

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

/// Most events that wait to be read.
const MOST: usize = 4096;

/// State of both sides.
struct Bell {
    /// Readable while there is something to read.
    event: OwnedFd,
    /// Set if `event` is.
    rung: AtomicBool,
    /// Set if events were lost since they were last read.
    lost: AtomicBool,
}

/// The side that notices. Datapaths record in it without locks of ours and without waiting.
pub(crate) struct Journal<T> {
    events: SyncSender<T>,
    bell: Arc<Bell>,
}

impl<T> Journal<T> {
    /// Creates both sides. Fails if the process has no file descriptor left.
    pub(crate) fn new() -> Result<(Self, News<T>), Error> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| Error::os("an eventfd for new stations", errno))?;
        let bell = Arc::new(Bell { event, rung: AtomicBool::new(false), lost: AtomicBool::new(false) });
        let (events, receiver) = sync_channel(MOST);
        Ok((Self { events, bell: bell.clone() }, News { events: receiver, bell }))
    }

    #[cold]
    pub(crate) fn record(&self, event: T) {
        match self.events.try_send(event) {
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

/// News from datapaths, in the order in which each has noticed it. Its descriptor is readable while there is something.
pub struct News<T> {
    events: Receiver<T>,
    bell: Arc<Bell>,
}

impl<T> News<T> {
    /// Passes what was not read before, up to 4096, to `each`. Returns `false` if some was lost, as it came faster than it was read.
    pub fn read(&self, each: impl FnMut(T)) -> bool {
        // Cleared before the events are read: one that comes later rings again.
        let _ = rustix::io::read(&self.bell.event, &mut [0; 8]);
        self.bell.rung.store(false, Ordering::Release);
        let known = !self.bell.lost.swap(false, Ordering::AcqRel);
        // Datapaths go on adding while this reads.
        self.events.try_iter().take(MOST).for_each(each);
        known
    }
}

impl<T> AsFd for News<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }
}
