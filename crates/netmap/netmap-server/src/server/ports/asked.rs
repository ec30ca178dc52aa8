//! Validation of requested registrations, and the reply to them.

use std::os::fd::{BorrowedFd, OwnedFd};

use ringpass_ipc::Credentials;
use ringpass_memory::Error as MemoryError;
use ringpass_netmap::request::{Mode, PortName, Register, register};
use ringpass_netmap::{Direction, PortMemory, Region, Shape};
use rustix::io::Errno;

use crate::server::open_port::SLOTS;
use crate::server::{RequestError, User, Users};

/// Returns the number of slots of a Tx ring (`direction` 0) or Rx ring (1). A program that requests more than there can be
/// gets as many as from netmap, which fit into any memory of usual size.
pub(super) fn slots(asked: &Register, direction: usize) -> Result<u32, RequestError> {
    match asked.slots[direction] {
        0 => Ok(SLOTS),
        1 => Err(RequestError::new(Errno::INVAL, "a ring has 2 slots or more")),
        slots @ 2..=MAX_RING_SLOTS => Ok(slots),
        _ => Ok(NETMAP_RING_SLOTS),
    }
}

/// Largest number of slots of a ring.
const MAX_RING_SLOTS: u32 = 16_384;
/// Largest number of slots of a ring in netmap.
const NETMAP_RING_SLOTS: u32 = 4096;

/// Returns which rings a registration covers.
pub(super) fn bound(
    name: &PortName,
    asked: &Register,
    shape: Shape,
) -> Result<impl Fn(Direction, u16) -> bool + use<>, RequestError> {
    let mode = asked.mode;
    let ring = asked.ring;
    let flags = asked.flags;
    let (of_host, one) = match mode {
        Mode::Host | Mode::NicAndHost | Mode::OneHost => (true, mode == Mode::OneHost),
        _ => (false, mode == Mode::OneNic),
    };
    let refused = |why| Err(RequestError::new(Errno::INVAL, format!("{name} {why}")));
    if of_host && shape.host_rings == [0; 2] {
        return refused("has no rings of the host's stack; 'ringpass netmapd --host NAME=tap:x' gives it some".into());
    }
    let counts = if of_host { shape.host_rings } else { shape.rings };
    if one && counts.iter().all(|&rings| ring >= rings) {
        let last = counts.iter().max().map_or(0, |rings| rings.saturating_sub(1));
        let what = if of_host { "ring of the host's stack" } else { "ring" };
        return refused(format!("has no {what} {ring}; write one from 0 to {last}"));
    }
    // A direction with fewer rings than the other takes part with its first one.
    let chosen = counts.map(|rings| if ring < rings { ring } else { 0 });
    Ok(move |direction, id: u16| {
        let (way, allowed) = match direction {
            Direction::Tx => (0, flags & register::RX_ONLY == 0),
            Direction::Rx => (1, flags & register::TX_ONLY == 0),
        };
        let (is_host, number) = match id.checked_sub(shape.rings[way]) {
            Some(number) => (true, number),
            None => (false, id),
        };
        allowed && (mode == Mode::NicAndHost || is_host == of_host) && (!one || number == chosen[way])
    })
}

/// Returns the rings that a registration covers: bit N stands for entry N of the CSB.
pub(super) fn entries(shape: Shape, bound: impl Fn(Direction, u16) -> bool) -> u64 {
    let all = shape.each_ring().map(|(direction, id)| bound(direction, id));
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
    let (offset, memory_size) = (interface as u64, region.bytes() as u64);
    let Shape { slots, rings, host_rings } = shape;
    let extra_buffers = extra as u32;
    Register { offset, memory_size, slots, rings, host_rings, memory_id, extra_buffers, ..asked.clone() }
}

pub(super) fn descriptors<const N: usize>(fds: [std::io::Result<OwnedFd>; N]) -> Result<[OwnedFd; N], RequestError> {
    let fds: Vec<OwnedFd> = fds.into_iter().collect::<Result<_, _>>().map_err(out_of_descriptors)?;
    Ok(fds.try_into().unwrap_or_else(|_| unreachable!("as many as came")))
}

/// Returns the file of a memory, to be passed to a program, unless there is none.
pub(super) fn shared(file: Result<BorrowedFd<'_>, MemoryError>) -> Result<BorrowedFd<'_>, RequestError> {
    file.map_err(|error| RequestError::new(Errno::PERM, error))
}

pub(super) fn out_of_descriptors(error: std::io::Error) -> RequestError {
    RequestError::new(Errno::MFILE, format!("file descriptors of the serving process: {error}"))
}
