//! Pipes: pairs of ends in a shared memory, which exist as long as one end is registered. This process does not
//! touch their frames.

use std::os::fd::OwnedFd;

use ringpass_memory::Memory;
use ringpass_netmap::{Notifier, PortMemory, Region, Shape, SyncError, attach_pipe};

use super::{RequestError, Users};

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
}

impl Pipe {
    /// Creates a pipe with this name in the memory `memory_id`. `shape` is that of the first end.
    pub fn new(
        (memory_id, region): (u16, &mut Region),
        parent: &str,
        name: &str,
        shape: Shape,
    ) -> Result<Self, RequestError> {
        let call_events = [super::eventfd()?, super::eventfd()?];
        let names = [format!("{parent}{{{name}"), format!("{parent}}}{name}")];
        let ends = PortMemory::pipe(region, names.each_ref().map(|name| &name[..]), shape)?;
        Ok(Self { ends, call_events, users: Default::default(), memory_id })
    }

    /// Resets an end to the positions that its last program has passed on, as that may have died at any point.
    pub fn reinit(&self, region: &Region, end: usize) -> Result<(), SyncError> {
        let places = self.ends.each_ref().map(PortMemory::interface);
        let csb = Memory::from(self.ends[0].csb().clone());
        let nobody: Notifier = std::sync::Arc::new(|| ());
        let rings = attach_pipe(region.memory(), (places[end], places[1 - end]), end == 0, &csb, &nobody);
        rings.into_iter().flatten().flatten().try_for_each(|ring| ring.reinit())
    }

    /// Frees all of it.
    pub fn release(self, region: &mut Region) {
        self.ends.into_iter().for_each(|end| end.release(region));
    }
}
