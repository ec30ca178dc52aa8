//! What a registration asks for, checked, and what its program is told.

use std::os::fd::{BorrowedFd, OwnedFd};

use ringpass_memory::DmaRegion;
use ringpass_peer::Credentials;
use rustix::io::Errno;

use crate::request::{Mode, PortName, Register, register};
use crate::server::{Refusal, Users};
use crate::{Direction, PortMemory, Region, Shape};

/// The name in a request's header has no `netmap:`; the oldest requests name pipes by a number.
pub(super) fn full_name(name: &str, asked: &Register) -> Result<PortName, Refusal> {
    let end = match asked.mode {
        Mode::PipeMaster => format!("{{{}", asked.ring),
        Mode::PipeSlave => format!("}}{}", asked.ring),
        _ => String::new(),
    };
    let prefix = if name.starts_with("vale") { "" } else { "netmap:" };
    Ok(format!("{prefix}{name}{end}").parse()?)
}

/// How many slots are wanted of a ring to send (0) or to receive (1).
pub(super) fn slots(asked: &Register, direction: usize) -> Result<u32, Refusal> {
    match asked.slots[direction] {
        0 => Ok(SLOTS),
        slots @ 2..=MOST_SLOTS => Ok(slots),
        slots => Err(Refusal::new(Errno::INVAL, format!("a ring has 2 to {MOST_SLOTS} slots, not {slots}"))),
    }
}

/// Slots of a ring, if nobody says.
const SLOTS: u32 = 1024;
/// At most.
const MOST_SLOTS: u32 = 16_384;

pub(super) fn each_ring(Shape { rings: [tx, rx], .. }: Shape) -> impl Iterator<Item = (Direction, u16)> {
    (0..tx).map(|id| (Direction::Tx, id)).chain((0..rx).map(|id| (Direction::Rx, id)))
}

/// Which rings a registration is for.
pub(super) fn bound(
    name: &PortName,
    asked: &Register,
    shape: Shape,
) -> Result<impl Fn(Direction, u16) -> bool + use<>, Refusal> {
    let (mode, ring, flags) = (asked.mode, asked.ring, asked.flags);
    if mode == Mode::OneNic && shape.rings.iter().all(|&rings| ring >= rings) {
        return Err(Refusal::new(Errno::INVAL, format!("{name} has no ring {ring}")));
    }
    Ok(move |direction, id| {
        let way = match direction {
            Direction::Tx => flags & register::RX_ONLY == 0,
            Direction::Rx => flags & register::TX_ONLY == 0,
        };
        way && mode != Mode::Null && (mode != Mode::OneNic || id == ring)
    })
}

/// Lets a program in, with a descriptor of its own, whose place is returned, and who has the port beside.
pub(super) fn admit(
    name: &PortName,
    asked: &Register,
    program: (u64, Credentials),
    (memory, region, users): (&PortMemory, &mut Region, &mut Users),
    bound: impl Fn(Direction, u16) -> bool,
) -> Result<(usize, String), Refusal> {
    let interface = memory.bind(region, bound)?;
    let admitted = users.admit(&name.to_string(), asked.flags & register::EXCLUSIVE != 0, program);
    let others = admitted.inspect_err(|_| region.release_interface(interface))?;
    Ok((interface, others))
}

/// What a program is told.
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

pub(super) fn descriptors<const N: usize>(fds: [std::io::Result<OwnedFd>; N]) -> Result<[OwnedFd; N], Refusal> {
    let fds: Vec<OwnedFd> = fds.into_iter().collect::<Result<_, _>>().map_err(out_of_descriptors)?;
    Ok(fds.try_into().unwrap_or_else(|_| unreachable!("as many as came")))
}

/// The file of memory that a program is given.
pub(super) fn shared(region: &DmaRegion) -> Result<BorrowedFd<'_>, Refusal> {
    region.file().map_err(|error| Refusal::new(Errno::PERM, error))
}

pub(super) fn out_of_descriptors(error: std::io::Error) -> Refusal {
    Refusal::new(Errno::MFILE, format!("file descriptors of the serving process: {error}"))
}
