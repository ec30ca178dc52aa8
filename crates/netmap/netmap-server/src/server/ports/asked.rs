//! Validation of requested registrations, and the reply to them.

use std::os::fd::{BorrowedFd, OwnedFd};

use ringpass_ipc::Credentials;
use ringpass_memory::DmaRegion;
use ringpass_netmap::request::{Mode, PortName, Register, register};
use ringpass_netmap::{Direction, PortMemory, Region, Shape};
use rustix::io::Errno;

use crate::server::open_port::SLOTS;
use crate::server::{RequestError, User, Users};

/// Returns the requested number of slots of a Tx ring (`direction` 0) or Rx ring (1).
pub(super) fn slots(asked: &Register, direction: usize) -> Result<u32, RequestError> {
    match asked.slots[direction] {
        0 => Ok(SLOTS),
        slots @ 2..=MAX_RING_SLOTS => Ok(slots),
        slots => Err(RequestError::new(Errno::INVAL, format!("a ring has 2 to {MAX_RING_SLOTS} slots, not {slots}"))),
    }
}

/// Largest number of slots of a ring.
const MAX_RING_SLOTS: u32 = 16_384;

pub(super) fn each_ring(Shape { rings: [tx, rx], .. }: Shape) -> impl Iterator<Item = (Direction, u16)> {
    (0..tx).map(|id| (Direction::Tx, id)).chain((0..rx).map(|id| (Direction::Rx, id)))
}

/// Returns which rings a registration covers.
pub(super) fn bound(
    name: &PortName,
    asked: &Register,
    shape: Shape,
) -> Result<impl Fn(Direction, u16) -> bool + use<>, RequestError> {
    let mode = asked.mode;
    let ring = asked.ring;
    let flags = asked.flags;
    if mode == Mode::OneNic && shape.rings.iter().all(|&rings| ring >= rings) {
        let last = shape.rings.iter().max().map_or(0, |rings| rings.saturating_sub(1));
        return Err(RequestError::new(Errno::INVAL, format!("{name} has no ring {ring}; write one from 0 to {last}")));
    }
    // A direction with fewer rings than the other takes part with its first one.
    let one = shape.rings.map(|rings| if ring < rings { ring } else { 0 });
    Ok(move |direction, id| {
        let (way, one) = match direction {
            Direction::Tx => (flags & register::RX_ONLY == 0, one[0]),
            Direction::Rx => (flags & register::TX_ONLY == 0, one[1]),
        };
        way && (mode != Mode::OneNic || id == one)
    })
}

/// Returns the rings that a registration covers: bit N stands for entry N of the CSB.
pub(super) fn entries(shape: Shape, bound: impl Fn(Direction, u16) -> bool) -> u64 {
    let all = each_ring(shape).map(|(direction, id)| bound(direction, id));
    all.enumerate().map(|(entry, bound)| u64::from(bound) << entry).sum()
}

/// Rings that a program is admitted to.
pub(super) struct Rings<'a> {
    /// Objects of the port.
    pub(super) memory: &'a PortMemory,
    /// The region that they lie in.
    pub(super) region: &'a mut Region,
    /// Programs that have the rings.
    pub(super) users: &'a mut Users,
}

/// Admits a program, with an interface descriptor of its own. Returns the descriptor's offset, and the other
/// programs that have some of its rings.
pub(super) fn admit(
    name: &PortName,
    asked: &Register,
    (number, program): (u64, Credentials),
    Rings { memory, region, users }: Rings<'_>,
    bound: impl Fn(Direction, u16) -> bool,
) -> Result<(usize, String), RequestError> {
    let (rings, exclusive) = (entries(memory.shape(), &bound), asked.flags & register::EXCLUSIVE != 0);
    let interface = memory.bind(region, bound)?;
    let admitted = users.admit(&name.to_string(), User { number, program, rings, exclusive });
    let others = admitted.inspect_err(|_| region.release_interface(interface))?;
    Ok((interface, others))
}

/// Returns the registration as granted.
pub(super) fn granted(
    asked: &Register,
    region: &Region,
    (interface, extra): (usize, usize),
    shape: Shape,
    memory_id: u16,
) -> Register {
    let (offset, memory_size) = (interface as u64, region.file().len() as u64);
    let Shape { slots, rings } = shape;
    let extra_buffers = extra as u32;
    Register { offset, memory_size, slots, rings, host_rings: [0; 2], memory_id, extra_buffers, ..asked.clone() }
}

pub(super) fn descriptors<const N: usize>(fds: [std::io::Result<OwnedFd>; N]) -> Result<[OwnedFd; N], RequestError> {
    let fds: Vec<OwnedFd> = fds.into_iter().collect::<Result<_, _>>().map_err(out_of_descriptors)?;
    Ok(fds.try_into().unwrap_or_else(|_| unreachable!("as many as came")))
}

/// Returns the file of a memory, to be passed to a program.
pub(super) fn shared(region: &DmaRegion) -> Result<BorrowedFd<'_>, RequestError> {
    region.file().map_err(|error| RequestError::new(Errno::PERM, error))
}

pub(super) fn out_of_descriptors(error: std::io::Error) -> RequestError {
    RequestError::new(Errno::MFILE, format!("file descriptors of the serving process: {error}"))
}
