//! `ioctl` on a descriptor of `/dev/netmap`, with requests in the program's memory.

use netmap::Direction;
use netmap::protocol::{BODY, Request};
use netmap::request::{
    Header, Kind, LegacyRequest, NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC, PortInfo, Register,
};
use rustix::io::Errno;

use crate::open::Open;

/// Access to the program's memory. An invalid address other than 0 ends the program, as in any function of the
/// C library.
pub trait UserMemory {
    /// Reads `N` bytes at an address.
    fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], Errno>;
    /// Writes bytes at an address.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno>;
}

/// Executes an `ioctl`; `None` if netmap does not have it.
pub fn ioctl(open: &Open, request: u64, argument: u64, program: &mut impl UserMemory) -> Option<Result<(), Errno>> {
    // Programs that keep the request in an `int` pass it sign-extended.
    match request & 0xffff_ffff {
        NIOCTXSYNC => Some(sync(open, Direction::Tx)),
        NIOCRXSYNC => Some(sync(open, Direction::Rx)),
        NIOCCTRL => Some(control(open, argument, program)),
        NIOCREGIF | NIOCGINFO => Some(legacy(open, request & 0xffff_ffff, argument, program)),
        _ => None,
    }
}

/// Synchronises the rings. A ring with invalid positions is reinitialised, which only `poll` reports.
fn sync(open: &Open, direction: Direction) -> Result<(), Errno> {
    let port = open.port().ok_or(Errno::NXIO)?;
    let synced = port.sync(direction);
    port.yield_if_idle(direction);
    if synced.broken { Err(Errno::IO) } else { Ok(()) }
}

/// Bytes of a request's body.
fn body_len(kind: Kind) -> usize {
    match kind {
        Kind::Register => Register::LEN,
        Kind::PortInfoGet => 32,
        Kind::ValeAttach | Kind::PoolsInfoGet => 64,
        Kind::PortHdrGet | Kind::PortHdrSet | Kind::ValeDetach | Kind::ValeList | Kind::SyncKloopStart => 8,
        Kind::ValeNewif | Kind::ValePollingEnable | Kind::ValePollingDisable => 16,
        Kind::ValeDelif | Kind::SyncKloopStop | Kind::CsbEnable => 0,
    }
}

fn control(open: &Open, at: u64, program: &mut impl UserMemory) -> Result<(), Errno> {
    let bytes = program.read::<{ Header::LEN }>(at)?;
    let header = Header::parse(&bytes).map_err(|_| Errno::INVAL)?;
    refuse_options(header.options, program)?;
    let body = match body_len(header.kind) {
        0 => Vec::new(),
        _ if header.body == 0 => return Err(Errno::INVAL),
        8 => program.read::<8>(header.body)?.into(),
        16 => program.read::<16>(header.body)?.into(),
        32 => program.read::<32>(header.body)?.into(),
        56 => program.read::<56>(header.body)?.into(),
        _ => program.read::<BODY>(header.body)?.into(),
    };
    if header.kind == Kind::Register {
        let asked = Register::parse(body.first_chunk().expect("56 bytes")).map_err(|_| Errno::INVAL)?;
        let granted = open.register(&header.name, &asked)?;
        return program.write(header.body, &granted.bytes());
    }
    let reply = open.ask(&Request::new(header.kind, &header.name, &body))?;
    if header.kind == Kind::ValeList {
        program.write(at, &Header::renamed(bytes, &reply.text))?;
    }
    match body_len(header.kind) {
        0 => Ok(()),
        len => program.write(header.body, &reply.body[..len]),
    }
}

/// Largest number of options in a list: a longer list is a cycle.
const MAX_OPTIONS: usize = 256;
/// Offset of the status in an option.
const STATUS: u64 = 12;

/// Refuses all options, as none is supported: sets the status of each to `EOPNOTSUPP` and fails the request.
fn refuse_options(first: u64, program: &mut impl UserMemory) -> Result<(), Errno> {
    let mut at = first;
    for _ in 0..MAX_OPTIONS {
        if at == 0 {
            return if first == 0 { Ok(()) } else { Err(Errno::OPNOTSUPP) };
        }
        let next = u64::from_le_bytes(program.read(at)?);
        program.write(at.wrapping_add(STATUS), &Errno::OPNOTSUPP.raw_os_error().to_le_bytes())?;
        at = next;
    }
    Err(Errno::MSGSIZE)
}

/// Commands of legacy requests for VALE switches.
const ATTACH: u16 = 1;
const DETACH: u16 = 2;
const LIST: u16 = 4;
const NEWIF: u16 = 6;
const DELIF: u16 = 7;

fn legacy(open: &Open, request: u64, at: u64, program: &mut impl UserMemory) -> Result<(), Errno> {
    let bytes = program.read::<{ LegacyRequest::LEN }>(at)?;
    let mut legacy = LegacyRequest::parse(&bytes).map_err(|_| Errno::INVAL)?;
    let (name, command) = (legacy.name.clone(), legacy.command);
    let ask = |kind: Kind, body: &[u8]| open.ask(&Request::new(kind, &name, body));
    match (request, command) {
        (NIOCGINFO, _) => {
            let asked = PortInfo { memory_id: legacy.register.memory_id, ..PortInfo::default() };
            let info = PortInfo::parse(ask(Kind::PortInfoGet, &asked.bytes())?.body.first_chunk().expect("64 bytes"));
            let PortInfo { memory_size, slots, rings, memory_id, .. } = info;
            legacy.register = Register { memory_size, slots, rings, memory_id, ..legacy.register };
        }
        (_, 0) => legacy.register = open.register(&name, &legacy.register)?,
        (_, NEWIF) => {
            let Register { slots, rings, memory_id, .. } = &legacy.register;
            let numbers = [rings[0], rings[1], *memory_id].map(u16::to_le_bytes).concat();
            ask(Kind::ValeNewif, &[slots.map(u32::to_le_bytes).concat(), numbers].concat())?;
        }
        (_, ATTACH) => _ = ask(Kind::ValeAttach, &legacy.register.bytes())?,
        (_, DETACH) => _ = ask(Kind::ValeDetach, &[])?,
        (_, LIST) => {
            let place = [u32::from(legacy.argument), u32::from(legacy.register.memory_id)];
            let reply = ask(Kind::ValeList, &place.map(u32::to_le_bytes).concat())?;
            let number = |at: usize| u16::from_le_bytes([reply.body[at], reply.body[at + 1]]);
            (legacy.argument, legacy.register.memory_id) = (number(0), number(4));
            legacy.name = reply.text;
        }
        (_, DELIF) => _ = ask(Kind::ValeDelif, &[])?,
        _ => return Err(Errno::OPNOTSUPP),
    }
    program.write(at, &legacy.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program's memory, from address 64 on.
    struct Memory(Vec<u8>);

    const START: u64 = 64;

    impl UserMemory for Memory {
        fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], Errno> {
            let at = at.checked_sub(START).ok_or(Errno::FAULT)? as usize;
            self.0.get(at..).and_then(|bytes| bytes.first_chunk()).copied().ok_or(Errno::FAULT)
        }

        fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
            let at = at.checked_sub(START).ok_or(Errno::FAULT)? as usize;
            self.0.get_mut(at..at + bytes.len()).ok_or(Errno::FAULT)?.copy_from_slice(bytes);
            Ok(())
        }
    }

    impl Memory {
        /// Creates options at these addresses, each linked to the next.
        fn options(at: &[u64], last: u64) -> Self {
            let mut memory = Self(vec![0; 4096]);
            for (number, &option) in at.iter().enumerate() {
                let next = at.get(number + 1).copied().unwrap_or(last);
                memory.write(option, &next.to_le_bytes()).unwrap();
                memory.write(option + 8, &1_u32.to_le_bytes()).unwrap();
            }
            memory
        }

        fn status(&self, option: u64) -> i32 {
            i32::from_le_bytes(self.read(option + STATUS).unwrap())
        }
    }

    #[test]
    fn options_are_refused_one_by_one() {
        assert_eq!(refuse_options(0, &mut Memory(Vec::new())), Ok(()));
        let at = [64, 200, 128];
        let mut memory = Memory::options(&at, 0);
        assert_eq!(refuse_options(64, &mut memory), Err(Errno::OPNOTSUPP));
        assert_eq!(at.map(|option| memory.status(option)), [Errno::OPNOTSUPP.raw_os_error(); 3]);
        assert_eq!(memory.read(72), Ok(1_u32.to_le_bytes()), "nothing else is touched");
        assert_eq!(refuse_options(64, &mut Memory::options(&at, 64)), Err(Errno::MSGSIZE), "a circle");
        assert_eq!(refuse_options(64, &mut Memory::options(&at, 8)), Err(Errno::FAULT));
    }

    proptest::proptest! {
        /// The loop ends, whatever the memory contains.
        #[test]
        fn options_of_any_kind_end(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400), first in 0_u64..600) {
            let _ = refuse_options(first, &mut Memory(bytes));
        }
    }
}
