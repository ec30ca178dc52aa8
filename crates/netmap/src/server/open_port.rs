//! A port whose rings are served, of a VALE switch or of the machine: memory of its own, or in the common one, and whoever moves
//! its frames.

use super::budget::Own;
use super::memories::Memories;
use super::{Refusal, ServedPort, Users};
use crate::{Place, Pools, PortMemory, Region, Ring, Served, Shape};

/// See the module.
pub struct OpenPort {
    /// Its rings. Before `own`: what is served goes before the memory.
    pub served: Box<dyn ServedPort>,
    /// What it has taken.
    pub memory: PortMemory,
    /// Its memory, if it has some of its own.
    pub own: Option<Own>,
    id: u16,
    /// Who has it.
    pub users: Users,
    /// How many monitors it has.
    pub monitors: usize,
    /// It stays without a program.
    pub stays: bool,
}

impl OpenPort {
    /// Makes one in a memory with this number, its own or one that there is. `serve` finds somebody who moves its frames.
    pub fn new(
        name: &str,
        shape: Shape,
        (id, memory): (u16, PortsMemory<'_>),
        serve: impl FnOnce(Vec<Served>, Place) -> Result<Box<dyn ServedPort>, Refusal>,
    ) -> Result<Self, Refusal> {
        let (mut own, shared) = match memory {
            PortsMemory::Own(own) => (Some(own), None),
            PortsMemory::Shared(region) => (None, Some(region)),
        };
        let region = own.as_mut().map(|own| &mut own.region).or(shared).expect("one of them");
        let (memory, served) = PortMemory::new(region, name, shape, id > super::EXCHANGED)?;
        let place = region.place();
        match serve(served, place) {
            Ok(served) => Ok(Self { served, memory, own, id, users: Users::default(), monitors: 0, stays: false }),
            Err(refusal) => {
                memory.release(region);
                own.into_iter().for_each(Own::release);
                Err(refusal)
            }
        }
    }

    /// Whether nobody has it any more.
    pub fn is_unused(&self) -> bool {
        self.users.count() == 0 && self.monitors == 0 && !self.stays
    }

    /// The number of its memory.
    pub fn memory_id(&self) -> u16 {
        self.id
    }

    /// The region that it lies in.
    pub fn region<'a>(&'a mut self, memories: &'a mut Memories) -> &'a mut Region {
        self.own.as_mut().map_or_else(|| memories.shared(self.id), |own| &mut own.region)
    }

    /// Gives all of it back, after the switch has let go of it.
    pub fn release(self, memories: &mut Memories) {
        let Self { served, memory, own, id, .. } = self;
        drop(served);
        match own {
            Some(own) => own.release(),
            None => memory.release(memories.shared(id)),
        }
    }
}

/// Where a port lies.
pub enum PortsMemory<'a> {
    /// In memory of its own.
    Own(Own),
    /// With others.
    Shared(&'a mut Region),
}

/// What a port's own memory has: room for its rings, and as many buffers again as they have. Descriptors for the port and 62
/// registrations.
pub fn pools(Shape { rings, slots }: Shape, extra_buffers: u32) -> Pools {
    let bytes = |(rings, slots): (u16, u32)| (usize::from(rings) + 1) * Ring::bytes(slots).next_multiple_of(64);
    let ring_bytes = rings.into_iter().zip(slots).map(bytes).sum::<usize>();
    let filled: u32 = rings.into_iter().zip(slots).map(|(rings, slots)| u32::from(rings) * slots).sum();
    let extra = extra_buffers.min(MOST_EXTRA);
    Pools { interfaces: 64, ring_bytes, buffers: 2 + 2 * filled + extra, ..Pools::default() }
}

const MOST_EXTRA: u32 = 1 << 16;
