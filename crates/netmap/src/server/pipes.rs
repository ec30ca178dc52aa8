//! Pipes: pairs of ends in a memory that is there anyway, there as long as one of them is registered. Nobody of this process moves
//! their frames.

use std::os::fd::OwnedFd;

use super::{Refusal, Users};
use crate::{Bell, Memory, PortMemory, Region, SyncError, attach_pipe};

/// A pipe.
pub struct Pipe {
    /// First and second.
    pub ends: [PortMemory; 2],
    /// Eventfds that wake the programs of each end.
    pub bells: [OwnedFd; 2],
    /// Who has them.
    pub users: [Users; 2],
    /// The number of the memory that it lies in.
    pub memory_id: u16,
}

impl Pipe {
    /// A pipe of this name in a region with this number, with so many slots a ring.
    pub fn new((memory_id, region): (u16, &mut Region), parent: &str, name: &str, slots: u32) -> Result<Self, Refusal> {
        let bells = [super::eventfd()?, super::eventfd()?];
        let names = [format!("{parent}{{{name}"), format!("{parent}}}{name}")];
        let ends = PortMemory::pipe(region, names.each_ref().map(|name| &name[..]), slots)?;
        Ok(Self { ends, bells, users: Default::default(), memory_id })
    }

    /// Has an end's program begin where the last one stood: it may have died at any point.
    pub fn begin_again(&self, region: &Region, end: usize) -> Result<(), SyncError> {
        let places = self.ends.each_ref().map(PortMemory::interface);
        let csb = Memory::from(self.ends[0].csb().clone());
        let nobody: Bell = std::sync::Arc::new(|| ());
        let rings = attach_pipe(region.memory(), (places[end], places[1 - end]), end == 0, &csb, &nobody);
        rings.into_iter().flatten().flatten().try_for_each(|ring| ring.begin_again())
    }

    /// Gives all of it back.
    pub fn release(self, region: &mut Region) {
        self.ends.into_iter().for_each(|end| end.release(region));
    }
}
