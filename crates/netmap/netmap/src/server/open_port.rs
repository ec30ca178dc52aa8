//! A port with served rings, of a VALE switch or native: its private or shared memory, and the [`ServedPort`]
//! that moves its frames.

use super::budget::PrivateMemory;
use super::memories::Memories;
use super::{RequestError, ServedPort, Users};
use crate::{BufferAccess, Kring, Pools, PortMemory, Region, Ring, Shape};

/// A port whose rings are served.
pub struct OpenPort {
    /// The served rings. Declared before `own`, so that they are dropped before the memory.
    pub served: Box<dyn ServedPort>,
    /// What the port has allocated from its region.
    pub memory: PortMemory,
    /// Private memory, if it has some.
    pub own: Option<PrivateMemory>,
    id: u16,
    /// Programs that have it.
    pub users: Users,
    /// Number of its monitors.
    pub monitors: usize,
    /// Whether it stays without a program.
    pub persistent: bool,
}

impl OpenPort {
    /// Creates a port in the memory with number `id`, which is private or shared. `serve` returns what moves
    /// its frames.
    pub fn new(
        name: &str,
        shape: Shape,
        (id, memory): (u16, PortsMemory<'_>),
        serve: impl FnOnce(Vec<Kring>, BufferAccess) -> Result<Box<dyn ServedPort>, RequestError>,
    ) -> Result<Self, RequestError> {
        let (mut own, shared) = match memory {
            PortsMemory::PrivateMemory(own) => (Some(own), None),
            PortsMemory::Shared(region) => (None, Some(region)),
        };
        let region = own.as_mut().map(|own| &mut own.region).or(shared).expect("one of them");
        let (memory, served) = PortMemory::new(region, name, shape, id > super::ZERO_COPY_MEMORY)?;
        let buffer_access = region.buffer_access();
        match serve(served, buffer_access) {
            Ok(served) => Ok(Self { served, memory, own, id, users: Users::default(), monitors: 0, persistent: false }),
            Err(refusal) => {
                memory.release(region);
                own.into_iter().for_each(PrivateMemory::release);
                Err(refusal)
            }
        }
    }

    /// Whether neither a program nor a monitor uses it, and it is not persistent.
    pub fn is_unused(&self) -> bool {
        self.users.count() == 0 && self.monitors == 0 && !self.persistent
    }

    /// Number of its memory.
    pub fn memory_id(&self) -> u16 {
        self.id
    }

    /// Region that it lies in.
    pub fn region<'a>(&'a mut self, memories: &'a mut Memories) -> &'a mut Region {
        self.own.as_mut().map_or_else(|| memories.shared(self.id), |own| &mut own.region)
    }

    /// Frees all of it, after the switch or port has closed its rings.
    pub fn release(self, memories: &mut Memories) {
        let Self { served, memory, own, id, .. } = self;
        drop(served);
        match own {
            Some(own) => own.release(),
            None => memory.release(memories.shared(id)),
        }
    }
}

/// Memory of a port.
pub enum PortsMemory<'a> {
    /// Memory of its own.
    PrivateMemory(PrivateMemory),
    /// Memory that it shares with other ports.
    Shared(&'a mut Region),
}

/// Pools of a port's private memory: room for its rings, twice as many buffers as they have, and descriptors
/// for the port and 62 registrations.
pub fn pools(Shape { rings, slots }: Shape, extra_buffers: u32) -> Pools {
    let bytes = |(rings, slots): (u16, u32)| (usize::from(rings) + 1) * Ring::bytes(slots).next_multiple_of(64);
    let ring_bytes = rings.into_iter().zip(slots).map(bytes).sum::<usize>();
    let filled: u32 = rings.into_iter().zip(slots).map(|(rings, slots)| u32::from(rings) * slots).sum();
    let extra = extra_buffers.min(MAX_EXTRA_BUFFERS);
    Pools { interfaces: 64, ring_bytes, buffers: 2 + 2 * filled + extra, ..Pools::default() }
}

const MAX_EXTRA_BUFFERS: u32 = 1 << 16;
