//! Pipes: pairs of ends in a shared memory, which exist as long as one end is registered. This process does not
//! touch their frames.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringpass_ipc::EventNotifier;
use ringpass_memory::Memory;
use ringpass_netmap::{Kring, Notifier, Offsets, PortMemory, Region, Shape, SyncError, Tap, attach_pipe};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::{Budget, RequestError, Reservation, ServedPort, Users, Watched};

/// A pipe in a shared memory, with the programs at its ends.
pub struct Pipe {
    /// First and second end.
    pub ends: [PortMemory; 2],
    /// Eventfds that wake the programs of each end.
    pub call_events: [OwnedFd; 2],
    /// Programs that have each end.
    pub users: [Users; 2],
    /// Number of the memory that it lies in.
    pub memory_id: u16,
    /// Memory by which programs copy frames for monitors ([`Tap`]). This process does not map it. It takes no room before programs
    /// write there, which they may at any time, so it is in the budget from the start.
    pub tap: OwnedFd,
    _reservation: Reservation,
    /// Eventfd that wakes the monitors.
    pub monitors_event: OwnedFd,
    monitors: Vec<Watching>,
}

/// A monitor of a pipe.
struct Watching {
    /// Number of its registration.
    number: u64,
    /// The end that it monitors.
    end: usize,
    watched: Watched,
}

impl Pipe {
    /// Creates a pipe with this name in the memory `memory_id`. `shape` is that of the first end.
    ///
    /// # Errors
    /// ENOMEM if there is no room for it in the region, or in the budget.
    pub fn new(
        (memory_id, region): (u16, &mut Region),
        (parent, name): (&str, &str),
        shape: Shape,
        budget: &Budget,
    ) -> Result<Self, RequestError> {
        let call_events = [super::eventfd()?, super::eventfd()?];
        let names = [format!("{parent}{{{name}"), format!("{parent}}}{name}")];
        let bytes = Tap::bytes(shape.rings);
        let reservation = budget.reserve(&names[0], bytes)?;
        let (tap, monitors_event) = (tap_memory(bytes)?, super::eventfd()?);
        let ends = PortMemory::pipe(region, names.each_ref().map(|name| &name[..]), shape)?;
        let users = Default::default();
        Ok(Self {
            ends,
            call_events,
            users,
            memory_id,
            tap,
            _reservation: reservation,
            monitors_event,
            monitors: Vec::new(),
        })
    }

    /// Goes on with a pipe of another server, which has no monitors: its ends, what wakes the programs of each, its users, the number of its memory, and
    /// the memory and the eventfd for monitors.
    pub fn resume(
        ends: [PortMemory; 2],
        call_events: [OwnedFd; 2],
        users: [Users; 2],
        memory_id: u16,
        [tap, monitors_event]: [OwnedFd; 2],
        budget: &Budget,
    ) -> Self {
        let reservation = budget.take(Tap::bytes(ends[0].shape().rings));
        let monitors = Vec::new();
        let pipe =
            Self { ends, call_events, users, memory_id, tap, _reservation: reservation, monitors_event, monitors };
        pipe.tell_programs();
        pipe
    }

    /// Whether neither a program nor a monitor uses it.
    pub fn is_unused(&self) -> bool {
        self.users.iter().all(|users| users.count() == 0) && self.monitors.is_empty()
    }

    /// Number of its monitors.
    pub fn monitors(&self) -> usize {
        self.monitors.len()
    }

    /// Adds a monitor of an end, by the number of its registration.
    pub fn add_monitor(&mut self, number: u64, end: usize, watched: Watched) {
        self.monitors.push(Watching { number, end, watched });
        self.tell_programs();
    }

    /// Removes a monitor, if it is one of this pipe.
    pub fn remove_monitor(&mut self, number: u64) {
        self.monitors.retain(|monitor| monitor.number != number);
        self.tell_programs();
    }

    /// Tells the programs which frames they have to copy.
    fn tell_programs(&self) {
        for (end, memory) in self.ends.iter().enumerate() {
            for ring in 0..memory.shape().rings[0] {
                let watches = |monitor: &Watching| {
                    let Watched { ways: [sent, received], rings } = monitor.watched;
                    (if monitor.end == end { sent } else { received }) && rings & 1 << ring != 0
                };
                self.ends[0].set_watched(end == 0, ring, self.monitors.iter().any(watches));
            }
        }
    }

    /// Resets an end to the positions that its last program has passed on, as that may have died at any point.
    pub fn reinit(&self, region: &Region, end: usize) -> Result<(), SyncError> {
        let places = self.ends.each_ref().map(PortMemory::interface);
        let csb = Memory::from(self.ends[0].csb().clone());
        let nobody: Notifier = std::sync::Arc::new(|| ());
        let rings = attach_pipe(region.memory(), (places[end], places[1 - end]), end == 0, &csb, &nobody, None);
        rings.into_iter().flatten().flatten().try_for_each(|ring| ring.reinit())
    }

    /// Frees all of it.
    pub fn release(self, region: &mut Region) {
        self.ends.into_iter().for_each(|end| end.release(region));
    }
}

/// Creates memory that only programs map, and that nobody can shrink.
fn tap_memory(bytes: usize) -> Result<OwnedFd, RequestError> {
    let make = || {
        let file = memfd_create("ringpass-tap", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    };
    make().map_err(|errno: Errno| RequestError::new(Errno::MFILE, format!("memory for monitors of a pipe: {errno}")))
}

/// Rings of a monitor of a pipe, which its program fills itself.
pub struct PipeMonitor(OwnedFd);

impl PipeMonitor {
    /// Creates the serving side, which has nothing to do.
    pub fn new() -> Result<Self, RequestError> {
        super::eventfd().map(Self)
    }
}

impl ServedPort for PipeMonitor {
    fn kick(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn subscribe(&mut self, _: u64, _: u64, _: EventNotifier) {}

    fn unsubscribe(&mut self, _: u64) {}

    /// Its program copies the frames, to the start of each buffer.
    fn set_offsets(&mut self, _: &dyn Fn(usize) -> Offsets) {}

    fn counters(&self) -> Value {
        json!({})
    }

    fn monitor(&self, _: Watched, _: Vec<Kring>, _: &Region) -> Result<Box<dyn ServedPort>, RequestError> {
        Err(RequestError::new(Errno::OPNOTSUPP, "a monitor cannot be monitored"))
    }
}
