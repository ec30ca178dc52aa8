//! Copies of a port's frames for programs that monitor it. The port does not wait for them: frames that they
//! have no room for are dropped and counted.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_ipc::EventNotifier;
use ringpass_memory::Packet;
use ringpass_netmap::{Flags, Kring, Offsets, Region};
use rustix::io::Errno;
use serde_json::Value;

use super::{SENDING, Shared, Tx, kick};
use crate::BufferAccess;
use crate::server::{RequestError, ServedPort, Watched};

/// Monitors of one direction of a port, or of a part of it.
#[derive(Default)]
pub(crate) struct Monitors {
    /// Whether there are any. Only a hint to take the lock.
    any: AtomicBool,
    all: Mutex<Vec<Mirror>>,
}

/// A monitor that gets copies.
struct Mirror {
    to: Tx,
    /// The monitor's ring that gets the frames of ring 0.
    first: usize,
    /// Bit N: the monitor gets the frames of ring N.
    rings: u64,
}

impl Monitors {
    /// Copies packets that were sent or received by a ring to the monitors, if there are any.
    #[inline]
    pub(crate) fn mirror(&self, ring: usize, packets: &[Packet]) {
        if self.any.load(Relaxed) {
            self.copy(ring, packets);
        }
    }

    #[cold]
    fn copy(&self, ring: usize, packets: &[Packet]) {
        if packets.is_empty() {
            return;
        }
        for Mirror { to, first, rings } in &mut *self.all() {
            if *rings & 1 << (ring & 63) != 0 {
                to.copy(packets, *first + ring);
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Mirror>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, mirror: Mirror) {
        self.all().push(mirror);
        self.any.store(true, Relaxed);
    }

    fn remove(&self, monitor: &Arc<Shared>) {
        let mut all = self.all();
        all.retain(|one| !one.to.is_of(monitor));
        self.any.store(!all.is_empty(), Relaxed);
    }
}

/// Rings of a monitored port that share a state.
pub(crate) struct Part {
    pub(crate) shared: Arc<Shared>,
    /// Number of the first of them among all rings of the port.
    pub(crate) first: usize,
}

/// A program's rings that get the copies. Monitoring ends when it is dropped.
pub(crate) struct Monitor {
    of: Vec<Part>,
    own: Arc<Shared>,
}

impl Monitor {
    /// Starts to monitor rings of a port: what programs send by them, what they receive, or both.
    pub(crate) fn open(
        of: Vec<Part>,
        Watched { ways, rings }: Watched,
        served: Vec<Kring>,
        region: &Region,
    ) -> Result<Box<dyn ServedPort>, RequestError> {
        let kick = kick().map_err(|error| RequestError::new(Errno::NOMEM, error))?;
        let monitor = Self { of, own: Shared::new(&kick) };
        let buffer_access = BufferAccess::of(region);
        monitor.own.open(served, &buffer_access);
        for &Part { ref shared, first } in &monitor.of {
            let rings = rings >> (first & 63);
            for (way, monitors) in shared.monitors.iter().enumerate().filter(|(way, _)| ways[*way] && rings != 0) {
                let mark = if way == SENDING { Flags::TX_MONITOR } else { Flags::default() };
                monitors.add(Mirror { to: Tx::copying(&monitor.own, mark, &buffer_access), first, rings });
            }
        }
        Ok(Box::new(monitor))
    }
}

impl ServedPort for Monitor {
    fn kick(&self) -> BorrowedFd<'_> {
        self.own.kick.event()
    }

    fn subscribe(&mut self, number: u64, entries: u64, call: EventNotifier) {
        self.own.subscribe(number, entries, &call);
    }

    fn unsubscribe(&mut self, number: u64) {
        self.own.unsubscribe(number);
    }

    fn set_offsets(&mut self, offsets: &dyn Fn(usize) -> Offsets) {
        self.own.set_offsets(offsets);
    }

    fn counters(&self) -> Value {
        self.own.counters.json()
    }

    fn monitor(&self, _: Watched, _: Vec<Kring>, _: &Region) -> Result<Box<dyn ServedPort>, RequestError> {
        Err(RequestError::new(Errno::OPNOTSUPP, "a monitor cannot be monitored"))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.of.iter().flat_map(|part| &part.shared.monitors).for_each(|monitors| monitors.remove(&self.own));
        self.own.close();
    }
}
