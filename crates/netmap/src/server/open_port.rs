//! A port whose rings are served, of a VALE switch or of the machine: memory of its own, or in the common one, and whoever moves
//! its frames.

use ringpass_memory::RegionConfig;

use super::memories::Memories;
use super::{Refusal, ServedPort, Users};
use crate::{Place, Pools, PortMemory, Region, Ring, Served, Shape};

/// See the module.
pub struct OpenPort {
    /// Its rings. Before `own`: what is served goes before the memory.
    pub served: Box<dyn ServedPort>,
    /// What it has taken.
    pub memory: PortMemory,
    /// Its region, if it has one of its own.
    pub own: Option<Region>,
    id: u16,
    /// Who has it.
    pub users: Users,
    /// How many monitors it has.
    pub monitors: usize,
    /// It stays without a program.
    pub stays: bool,
}

impl OpenPort {
    /// Makes one, in a memory that there is or in one of its own. `serve` finds somebody who moves its frames.
    pub fn new(
        name: &str,
        shape: Shape,
        extra_buffers: u32,
        (id, shared): (u16, Option<&mut Region>),
        serve: impl FnOnce(Vec<Served>, Place) -> Result<Box<dyn ServedPort>, Refusal>,
    ) -> Result<Self, Refusal> {
        let mut own = match shared {
            Some(_) => None,
            None => Some(Region::new(pools(shape, extra_buffers), &RegionConfig::default())?),
        };
        let region = own.as_mut().or(shared).expect("one of them");
        let (memory, served) = PortMemory::new(region, name, shape, id > super::EXCHANGED)?;
        let place = region.place();
        match serve(served, place) {
            Ok(served) => Ok(Self { served, memory, own, id, users: Users::default(), monitors: 0, stays: false }),
            Err(refusal) => {
                memory.release(region);
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
        self.own.as_mut().unwrap_or_else(|| memories.shared(self.id))
    }

    /// Gives all of it back, after the switch has let go of it.
    pub fn release(self, memories: &mut Memories) {
        let Self { served, memory, own, id, .. } = self;
        drop(served);
        match own {
            Some(mut own) => memory.release(&mut own),
            None => memory.release(memories.shared(id)),
        }
    }
}

/// Room for a port's rings, and as many buffers again as they have. Descriptors for the port and 62 registrations.
fn pools(Shape { rings, slots }: Shape, extra_buffers: u32) -> Pools {
    let bytes = |(rings, slots): (u16, u32)| (usize::from(rings) + 1) * Ring::bytes(slots).next_multiple_of(64);
    let ring_bytes = rings.into_iter().zip(slots).map(bytes).sum();
    let filled: u32 = rings.into_iter().zip(slots).map(|(rings, slots)| u32::from(rings) * slots).sum();
    let extra = extra_buffers.min(MOST_EXTRA);
    Pools { interfaces: 64, ring_bytes, buffers: 2 + 2 * filled + extra, ..Pools::default() }
}

const MOST_EXTRA: u32 = 1 << 16;
