//! `ioctl` on a descriptor of `/dev/netmap`, with requests in the program's memory.

use std::cell::RefCell;

use netmap::Direction;
use netmap::client::Client;
use netmap::protocol::{BODY, Reply, Request};
use netmap::request::{
    AskedMemory, AskedOffsets, Header, InvalidRequest, Kind, LegacyRequest, Mode, NIOCCTRL, NIOCGINFO, NIOCREGIF,
    NIOCRXSYNC, NIOCTXSYNC, NewPort, PortInfo, Register, ValePolling,
};
use rustix::io::Errno;

use crate::csb_mode;
use crate::external_memory::MemoryFile;
use crate::open::Open;
use crate::option_header::OptionHeader;
use crate::options::Options;
use crate::refusal::Refusal;
use crate::registered::RegisteredPort;
use crate::sync_loop;
use crate::user_memory::UserMemory;

/// Executes an `ioctl`; `None` if netmap does not have it.
pub fn ioctl(open: &Open, request: u64, argument: u64, program: &mut impl UserMemory) -> Option<Result<(), Refusal>> {
    // Programs that keep the request in an `int` pass it sign-extended.
    match request & 0xffff_ffff {
        NIOCTXSYNC => Some(sync(open, Direction::Tx)),
        NIOCRXSYNC => Some(sync(open, Direction::Rx)),
        NIOCCTRL => Some(control(open, argument, program)),
        NIOCREGIF | NIOCGINFO => Some(legacy(open, request & 0xffff_ffff, argument, program)),
        _ => None,
    }
}

/// Returns whether a number is that of an `ioctl` of netmap's.
pub fn is_netmaps(request: u64) -> bool {
    [NIOCTXSYNC, NIOCRXSYNC, NIOCCTRL, NIOCREGIF, NIOCGINFO].contains(&(request & 0xffff_ffff))
}

/// Synchronises the rings. A ring with invalid positions is reinitialised, which only `poll` reports.
fn sync(open: &Open, direction: Direction) -> Result<(), Refusal> {
    let none = || Refusal::new(Errno::NXIO, "a descriptor without a port has no rings to synchronise");
    let port = open.port().ok_or_else(none)?;
    if port.is_in_csb_mode() {
        return Err(Refusal::new(Errno::BUSY, "in CSB mode only the loop synchronises"));
    }
    let synced = port.sync(direction);
    port.yield_if_idle(direction);
    if synced.broken {
        return Err(Refusal::new(Errno::IO, "the other side of a ring has written positions that do not exist"));
    }
    Ok(())
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

fn control(open: &Open, at: u64, program: &mut impl UserMemory) -> Result<(), Refusal> {
    let bytes = program.read::<{ Header::LEN }>(at)?;
    let header = Header::parse(&bytes)?;
    let len = body_len(header.kind);
    if (len == 0) != (header.body == 0) {
        return Err(InvalidRequest::Body.into());
    }
    let body = match len {
        0 => Vec::new(),
        8 => program.read::<8>(header.body)?.into(),
        16 => program.read::<16>(header.body)?.into(),
        32 => program.read::<32>(header.body)?.into(),
        56 => program.read::<56>(header.body)?.into(),
        _ => program.read::<BODY>(header.body)?.into(),
    };
    let mut options = Options::read(header.options, len, program)?;
    let result = execute(open, &header, body, &mut options, program);
    options.write_statuses(program)?;
    let Reply { body, text, .. } = result?;
    if header.kind == Kind::ValeList {
        program.write(at, &Header::renamed(bytes, &text))?;
    }
    if len > 0 {
        program.write(header.body, &body[..len])?;
    }
    Ok(())
}

/// Executes a request. As in netmap, options that it does not know fail a registration that has nothing else wrong with it; other
/// requests ignore them.
fn execute(
    open: &Open,
    header: &Header,
    body: Vec<u8>,
    options: &mut Options,
    program: &mut impl UserMemory,
) -> Result<Reply, Refusal> {
    let no_port = || Refusal::new(Errno::NXIO, "a descriptor without a port has no loop");
    match header.kind {
        Kind::Register => {
            let asked = Register::parse(body.first_chunk().expect("56 bytes"))?;
            let options = RefCell::new(options);
            let program = RefCell::new(program);
            let connected = |client: &mut Client, asked: &mut Register| {
                bring_memory(client, asked, &mut options.borrow_mut(), *program.borrow_mut())
            };
            let prepare = |registered: &mut RegisteredPort| {
                let (options, program) = (&mut **options.borrow_mut(), &mut **program.borrow_mut());
                if let Some((at, _)) = options.payload(OptionHeader::OFFSETS) {
                    let granted = registered.set_offsets(&AskedOffsets::parse(&program.read(at)?));
                    program.write(at, &options.used(OptionHeader::OFFSETS, granted)?.bytes())?;
                }
                if options.payload(OptionHeader::CSB).is_some() {
                    registered.set_csb(csb_mode::enable(registered.port(), options, program)?);
                }
                options.all_used()
            };
            Ok(Reply::granted(&open.register(&header.name, &asked, connected, prepare)?.bytes()))
        }
        Kind::CsbEnable => {
            let registered = open.port().ok_or_else(|| Refusal::new(Errno::INVAL, "CSB mode without a port"))?;
            if registered.sync_loop.is_running() {
                return Err(Refusal::new(Errno::BUSY, "a loop uses the CSB; stop it first"));
            }
            registered.set_csb(csb_mode::enable(registered.port(), options, program)?);
            Ok(Reply::granted(&[]))
        }
        Kind::SyncKloopStart => {
            let [a, b, c, d, ..] = body[..] else { return Err(InvalidRequest::Body.into()) };
            sync_loop::run(open.port(), u32::from_le_bytes([a, b, c, d]), options, program)?;
            Ok(Reply::granted(&body))
        }
        Kind::SyncKloopStop => {
            open.port().ok_or_else(no_port)?.sync_loop.stop()?;
            Ok(Reply::granted(&[]))
        }
        Kind::PoolsInfoGet if header.name.is_empty() => {
            Err(Refusal::new(Errno::NXIO, "the pools of a port without a name"))
        }
        kind => open.ask(&Request::new(kind, &header.name, &body)),
    }
}

/// Gives the program's own memory to the server, if an option names some: the registration will lie there.
fn bring_memory(
    client: &mut Client,
    asked: &mut Register,
    options: &mut Options,
    program: &mut impl UserMemory,
) -> Result<(), Refusal> {
    let Some((at, _)) = options.payload(OptionHeader::EXTERNAL) else { return Ok(()) };
    let mut bring = || {
        let start = u64::from_le_bytes(program.read(at)?);
        let memory = AskedMemory::parse(&program.read(at.wrapping_add(8))?);
        let MemoryFile { file, offset } = program.file_of(start, memory.size)?;
        client.bring_memory(file, offset, &memory).map_err(Refusal::from)
    };
    let result = bring();
    let granted = options.used(OptionHeader::EXTERNAL, result)?;
    asked.memory_id = granted.id;
    Ok(program.write(at.wrapping_add(8), &granted.bytes())?)
}

/// Commands of legacy requests.
mod command {
    pub const ATTACH: u16 = 1;
    /// Argument of `ATTACH`: the host's side, too.
    pub const ATTACH_HOST: u16 = 1;
    pub const DETACH: u16 = 2;
    pub const LIST: u16 = 4;
    pub const HEADER_SET: u16 = 5;
    pub const NEWIF: u16 = 6;
    pub const DELIF: u16 = 7;
    pub const PASSTHROUGH_CREATE: u16 = 8;
    pub const PASSTHROUGH_DELETE: u16 = 9;
    pub const POLLING_ON: u16 = 10;
    pub const POLLING_OFF: u16 = 11;
    pub const HEADER_GET: u16 = 12;
}

fn legacy(open: &Open, request: u64, at: u64, program: &mut impl UserMemory) -> Result<(), Refusal> {
    let bytes = program.read::<{ LegacyRequest::LEN }>(at)?;
    let mut legacy = LegacyRequest::parse(&bytes)?;
    let name = legacy.name.clone();
    let port = legacy.port.clone();
    let command = legacy.command;
    let ask = |kind: Kind, body: &[u8]| open.ask(&Request::new(kind, &name, body));
    let argument = [u32::from(legacy.argument), 0].map(u32::to_le_bytes).concat();
    match (request, command) {
        (NIOCGINFO, command::LIST) => {
            let place = [u32::from(legacy.argument), u32::from(legacy.register.memory_id)];
            let reply = ask(Kind::ValeList, &place.map(u32::to_le_bytes).concat())?;
            let number = |at: usize| u16::from_le_bytes([reply.body[at], reply.body[at + 1]]);
            (legacy.argument, legacy.register.memory_id) = (number(0), number(4));
            legacy.name = reply.text;
        }
        (NIOCGINFO, _) => {
            let Register { memory_size, slots, rings, memory_id, .. } = legacy.register;
            let asked = PortInfo { memory_size, slots, rings, memory_id, ..PortInfo::default() };
            let info = PortInfo::parse(ask(Kind::PortInfoGet, &asked.bytes())?.body.first_chunk().expect("64 bytes"));
            let PortInfo { memory_size, slots, rings, memory_id, .. } = info;
            legacy.register = Register { memory_size, slots, rings, memory_id, ..legacy.register };
        }
        (_, 0) => legacy.register = open.register(&port, &legacy.register, |_, _| Ok(()), |_| Ok(()))?,
        (_, command::NEWIF) => {
            let Register { slots, rings, memory_id, .. } = legacy.register;
            let reply = ask(Kind::ValeNewif, &NewPort { slots, rings, memory_id }.bytes())?;
            let NewPort { slots, rings, memory_id } = NewPort::parse(reply.body.first_chunk().expect("64 bytes"));
            legacy.register = Register { slots, rings, memory_id, ..legacy.register };
        }
        (_, command::ATTACH) => {
            let host = legacy.argument == command::ATTACH_HOST;
            let mode = if host { Mode::NicAndHost } else { Mode::AllNic };
            let reply = ask(Kind::ValeAttach, &Register { mode, ..legacy.register.clone() }.bytes())?;
            legacy.register.memory_id = Register::parse(reply.body.first_chunk().expect("64 bytes"))?.memory_id;
        }
        (_, command::DETACH) => _ = ask(Kind::ValeDetach, &[])?,
        (_, command::HEADER_SET) => _ = ask(Kind::PortHdrSet, &argument)?,
        (_, command::HEADER_GET) => {
            let reply = ask(Kind::PortHdrGet, &argument)?;
            legacy.argument = u16::from_le_bytes([reply.body[0], reply.body[1]]);
        }
        (_, command::DELIF) => _ = ask(Kind::ValeDelif, &[])?,
        (_, command::POLLING_ON) => {
            let Register { mode, ring, .. } = legacy.register;
            let mode = if mode == Mode::OneNic { ValePolling::MULTI_CPU } else { ValePolling::SINGLE_CPU };
            let polling = ValePolling { mode, first_cpu: ring.into(), cpus: legacy.argument.into() };
            ask(Kind::ValePollingEnable, &polling.bytes())?;
        }
        (_, command::POLLING_OFF) => _ = ask(Kind::ValePollingDisable, &[])?,
        (_, command::PASSTHROUGH_CREATE | command::PASSTHROUGH_DELETE) => {
            return Err(Refusal::new(Errno::NOMEM, "netmap's passthrough is served by 'ringpass passthrough'"));
        }
        _ => return Err(Refusal::new(Errno::INVAL, format!("command {command}, which netmap does not have"))),
    }
    Ok(program.write(at, &legacy.bytes())?)
}

#[cfg(test)]
pub mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    /// A program's memory, from address 64 on.
    pub struct Memory(pub Vec<u8>);

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

        fn map(&self, _: u64, _: usize) -> Result<ringpass_memory::Memory, Errno> {
            Err(Errno::FAULT)
        }

        fn file_of(&mut self, _: u64, _: u64) -> Result<MemoryFile, Errno> {
            Err(Errno::FAULT)
        }

        fn duplicate(&self, _: i32) -> Result<OwnedFd, Errno> {
            Err(Errno::BADF)
        }
    }

    /// Makes a request whose header is at 64, and whose body is at `body`. Returns the error.
    fn refused(kind: Kind, body: u64) -> Errno {
        let mut memory = Memory(vec![0; 256]);
        memory.write(START, &Header::bytes(kind as u16, "x")).unwrap();
        memory.write(START + 80, &body.to_le_bytes()).unwrap();
        ioctl(&Open::disconnected(), NIOCCTRL, START, &mut memory).unwrap().unwrap_err().errno
    }

    #[test]
    fn bodies_are_there_exactly_if_a_request_has_one() {
        assert_eq!(refused(Kind::Register, 0), Errno::INVAL);
        assert_eq!(refused(Kind::Register, 8), Errno::FAULT);
        assert_eq!(refused(Kind::ValeDelif, 152), Errno::INVAL);
        assert_eq!(refused(Kind::CsbEnable, 0), Errno::INVAL, "there is no option with a CSB");
    }
}
