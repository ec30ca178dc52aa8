//! A port with served rings, of a VALE switch or native: its private or shared memory, and the [`ServedPort`]
//! that moves its frames.

use ringpass_netmap::{Kring, Pools, PortMemory, Region, Ring, Shape};

use super::memories::Memories;
use super::{RequestError, ServedPort, Users};

/// Slots of a ring, by default.
pub const SLOTS: u32 = 1024;

/// A port whose rings are served.
pub struct OpenPort {
    /// The served rings.
    pub served: Box<dyn ServedPort>,
    /// Objects that the port has allocated from its region.
    pub memory: PortMemory,
    id: u16,
    /// Programs that have it.
    pub users: Users,
    /// Number of its monitors.
    pub monitors: usize,
    /// User ID of the program that made it; 0 for native ports and monitors.
    pub owner: u32,
    /// Whether it stays without a program.
    pub persistent: bool,
}

impl OpenPort {
    /// Creates a port in the memory with number `id`, where it is [counted](Memories::enter) already. `serve`
    /// returns what moves its frames. On an error the port has left the memory.
    pub fn new(
        name: &str,
        shape: Shape,
        (id, memories): (u16, &mut Memories),
        serve: impl FnOnce(Vec<Kring>, &Region) -> Result<Box<dyn ServedPort>, RequestError>,
    ) -> Result<Self, RequestError> {
        let created = Self::create(name, shape, (id, memories.region(id)), serve);
        created.inspect_err(|_| memories.leave(id))
    }

    fn create(
        name: &str,
        shape: Shape,
        (id, region): (u16, &mut Region),
        serve: impl FnOnce(Vec<Kring>, &Region) -> Result<Box<dyn ServedPort>, RequestError>,
    ) -> Result<Self, RequestError> {
        let (memory, served) = PortMemory::new(region, name, shape, id > super::ZERO_COPY_MEMORY)?;
        match serve(served, region) {
            Ok(served) => {
                Ok(Self { served, memory, id, users: Users::default(), monitors: 0, owner: 0, persistent: false })
            }
            Err(refusal) => {
                memory.release(region);
                Err(refusal)
            }
        }
    }

    /// Goes on with a port of another server, of this owner, in the memory `id`, where it is counted already.
    pub fn resume(
        served: Box<dyn ServedPort>,
        memory: PortMemory,
        id: u16,
        users: Users,
        (owner, persistent): (u32, bool),
    ) -> Self {
        Self { served, memory, id, users, monitors: 0, owner, persistent }
    }

    /// Whether neither a program nor a monitor uses it, and it is not persistent.
    pub fn is_unused(&self) -> bool {
        self.users.count() == 0 && self.monitors == 0 && !self.persistent
    }

    /// Number of its memory.
    pub fn memory_id(&self) -> u16 {
        self.id
    }

    /// Frees all of it, after the switch or port has closed its rings.
    pub fn release(self, memories: &mut Memories) {
        let Self { served, memory, id, .. } = self;
        drop(served);
        memory.release(memories.region(id));
        memories.leave(id);
    }
}

/// Pools of a port's private memory: room for its rings and for [`PIPES`] pipes of as many slots, twice as many buffers
/// as the rings have or as many more as those pipes need, and descriptors for the port and 62 registrations.
pub fn pools(Shape { rings, slots, host_rings }: Shape, extra_buffers: u32) -> Pools {
    let rings = [0, 1].map(|way| rings[way] + host_rings[way]);
    // Each end of a pipe has a pair of rings and a pair of the host's. Those that send have buffers.
    let slots_of_pipe = slots.into_iter().max().unwrap_or_default().max(SLOTS);
    let ring_bytes = bytes_of_rings(rings, slots) + PIPES * 2 * bytes_of_rings([1; 2], [slots_of_pipe; 2]);
    let filled = buffers_of_rings(rings, slots);
    let extra = extra_buffers.min(MAX_EXTRA_BUFFERS);
    let spare = filled.max(PIPES as u32 * 2 * slots_of_pipe);
    Pools { interfaces: 64, ring_bytes, buffers: 2 + filled + spare + extra, ..Pools::default() }
}

/// Pools of the memory of pipes whose port does not exist: room for four pipes of this shape, or fewer large ones. Further pipes get
/// another memory.
pub fn pools_of_pipes(shape: Shape, extra_buffers: u32) -> Pools {
    let Shape { rings, slots, .. } = shape;
    // The two ends have the same rings, the other way round. Those that send have buffers.
    let pipes = (BUFFERS_OF_PIPES / buffers_of_pipe(shape)).clamp(1, 4);
    let ring_bytes = pipes as usize * 2 * bytes_of_rings(rings, slots);
    let buffers = 2 + pipes * buffers_of_pipe(shape) + extra_buffers.min(MAX_EXTRA_BUFFERS);
    Pools { interfaces: 64, ring_bytes, buffers, ..Pools::default() }
}

/// Number of buffers of a pipe of this shape.
pub fn buffers_of_pipe(Shape { rings, slots, .. }: Shape) -> u32 {
    buffers_of_rings(rings, slots)
}

/// Bytes of these numbers of rings, each way with one of the host's.
fn bytes_of_rings(rings: [u16; 2], slots: [u32; 2]) -> usize {
    let bytes = |(rings, slots): (u16, u32)| (usize::from(rings) + 1) * Ring::bytes(slots).next_multiple_of(64);
    rings.into_iter().zip(slots).map(bytes).sum()
}

/// Number of buffers of rings that have some in each slot.
fn buffers_of_rings(rings: [u16; 2], slots: [u32; 2]) -> u32 {
    rings.into_iter().zip(slots).map(|(rings, slots)| u32::from(rings) * slots).sum()
}

/// Buffers in a memory of pipes, unless a single one needs more.
const BUFFERS_OF_PIPES: u32 = 4 * 2 * SLOTS;
/// Pipes that have room in a port's private memory, as in netmap.
const PIPES: usize = 2;
const MAX_EXTRA_BUFFERS: u32 = 1 << 16;
