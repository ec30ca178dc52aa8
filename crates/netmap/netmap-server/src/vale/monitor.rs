//! Copies of a port's frames for programs that monitor it. The port does not wait for them: frames that they
//! have no room for are dropped and counted.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_ipc::EventNotifier;
use ringpass_memory::Packet;
use ringpass_netmap::{Buffers, Kring};
use rustix::io::Errno;
use serde_json::Value;

use super::{Shared, Tx, kick};
use crate::server::{RequestError, ServedPort};

/// Monitors of one direction of a port.
#[derive(Default)]
pub(crate) struct Monitors {
    /// Whether there are any. Only a hint to take the lock.
    any: AtomicBool,
    all: Mutex<Vec<Tx>>,
}

impl Monitors {
    /// Copies packets that were sent or received to the monitors, if there are any.
    #[inline]
    pub(crate) fn mirror(&self, packets: &[Packet]) {
        if self.any.load(Relaxed) {
            self.copy(packets);
        }
    }

    #[cold]
    fn copy(&self, packets: &[Packet]) {
        self.all().iter_mut().for_each(|monitor| monitor.copy(packets));
    }

    fn all(&self) -> MutexGuard<'_, Vec<Tx>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, monitor: &Arc<Shared>) {
        self.all().push(Tx::new(monitor));
        self.any.store(true, Relaxed);
    }

    fn remove(&self, monitor: &Arc<Shared>) {
        let mut all = self.all();
        all.retain(|one| !one.is_of(monitor));
        self.any.store(!all.is_empty(), Relaxed);
    }
}

/// A program's rings that get the copies. Monitoring ends when it is dropped.
pub(crate) struct Monitor {
    of: Vec<Arc<Shared>>,
    own: Arc<Shared>,
}

impl Monitor {
    /// Starts to monitor these rings: what programs send by them, what they receive, or both, as `ways` says.
    pub(crate) fn open(
        of: Vec<Arc<Shared>>,
        ways: [bool; 2],
        served: Vec<Kring>,
        buffers: &Buffers,
    ) -> Result<Box<dyn ServedPort>, RequestError> {
        let kick = kick().map_err(|error| RequestError::new(Errno::NOMEM, error))?;
        let monitor = Self { of, own: Shared::new(&kick) };
        monitor.own.open(served, &buffers.clone().into());
        for shared in &monitor.of {
            let wanted = shared.monitors.iter().zip(ways).filter(|(_, wanted)| *wanted);
            wanted.for_each(|(monitors, _)| monitors.add(&monitor.own));
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

    fn counters(&self) -> Value {
        self.own.counters.json()
    }

    fn monitor(&self, _: [bool; 2], _: Vec<Kring>, _: &Buffers) -> Result<Box<dyn ServedPort>, RequestError> {
        Err(RequestError::new(Errno::OPNOTSUPP, "a monitor cannot be monitored"))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.of.iter().flat_map(|shared| &shared.monitors).for_each(|monitors| monitors.remove(&self.own));
        self.own.close();
    }
}
