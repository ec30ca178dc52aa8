//! The connection of one program.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass_ipc::{ConnectionLost, Credentials, Descriptors, MessageLoop, Stream};
use ringpass_netmap::protocol::{ADOPT, EXTERNAL, OFFSETS, Reply, Request, STATUS, UNREGISTER};
use ringpass_netmap::request::{AskedMemory, Header, Kind, Mode, NewPort, Register, ValePolling};
use ringpass_netmap::{Pools, Region, Shape};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::budget::{PendingMemory, PrivateMemory};
use super::ports::{Attached, Ports, Registered, Registration, Requester};
use super::{RequestError, info};

/// A program's connection, with at most one registration.
pub struct Session {
    message_loop: MessageLoop,
    registration: Option<Registration>,
    /// Number of the memory that the program has brought along.
    external: Option<u16>,
    program: Credentials,
    /// A request to be executed when its memory is allocated.
    waiting: Option<Waiting>,
    /// A status of which the program has read a part.
    status: Option<Rc<str>>,
}

/// Events that a session waits for.
pub struct Wait<'a> {
    /// Its socket.
    pub socket: BorrowedFd<'a>,
    /// Events of the socket.
    pub events: PollFlags,
    /// Longest time; `None` without a limit.
    pub limit: Option<Duration>,
}

/// A request whose memory was allocated, or why there is none.
struct Resumed {
    request: Request,
    own: Result<Vec<PrivateMemory>, RequestError>,
}

/// A request that waits for memory.
struct Waiting {
    request: Request,
    pending: PendingMemory,
    made: Vec<PrivateMemory>,
}

/// Time for whatever a program owes: its first request, the rest of a request, or reading its replies.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests of one program before the others are served, and the time after which no other one is begun.
const MAX_REQUESTS_PER_POLL: usize = 16;
const TIME_SLICE: Duration = Duration::from_millis(1);
/// Largest part of a status in one reply, in bytes.
const STATUS_PAGE: usize = Reply::MAX_TEXT_LEN / 2;

impl Session {
    /// Creates the session of a program that has connected.
    pub fn new(socket: OwnedFd, program: Credentials) -> Self {
        let message_loop = MessageLoop::new(stream(socket), REQUEST_TIMEOUT);
        Self { message_loop, registration: None, external: None, program, waiting: None, status: None }
    }

    /// Goes on with the connection of a program and what it has registered.
    pub fn resume(socket: OwnedFd, program: Credentials, registration: Option<Registration>) -> Self {
        let message_loop = MessageLoop::resume(stream(socket), REQUEST_TIMEOUT);
        Self { message_loop, registration, external: None, program, waiting: None, status: None }
    }

    /// Returns whether the program waits for something that has begun.
    pub fn is_busy(&self) -> bool {
        self.waiting.is_some() || !self.message_loop.is_between()
    }

    /// Returns whether a successor of the server can go on with the session.
    pub fn can_be_passed_on(&self, ports: &Ports) -> bool {
        let registered = self.registration.as_ref().is_none_or(|registration| ports.can_be_passed_on(registration));
        registered && self.external.is_none() && self.status.is_none() && !self.is_busy()
    }

    /// Returns the connection, unless it is in the middle of a message, and what is registered.
    pub fn into_parts(self) -> (Option<OwnedFd>, Option<Registration>) {
        (self.message_loop.into_socket(), self.registration)
    }

    /// User ID of the program.
    pub fn user(&self) -> u32 {
        self.program.uid
    }

    /// The socket and events to wait for, and for how long.
    pub fn wait_on(&self) -> Wait<'_> {
        let (socket, events) = self.message_loop.wait_on();
        if self.waiting.is_some() {
            // A program that waits for memory is served when that is allocated; meanwhile it can only hang up.
            return Wait { socket, events: PollFlags::empty(), limit: None };
        }
        Wait { socket, events, limit: self.message_loop.time_left() }
    }

    /// Whether the program waits for memory.
    pub fn waits_for_memory(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the program has missed a deadline.
    pub fn is_overdue(&self) -> bool {
        self.wait_on().limit.is_some_and(|left| left.is_zero())
    }

    /// Returns whether the program's eventfd takes so long to be signalled that no more signals are sent.
    pub fn has_slow_eventfd(&self) -> bool {
        self.registration.as_ref().is_some_and(Registration::has_slow_eventfd)
    }

    /// Whether the program has this port.
    pub fn has(&self, port: &str) -> bool {
        self.registration.as_ref().is_some_and(|registration| registration.port() == port)
    }

    /// Executes the program's requests. `made` becomes readable when memory was allocated. Returns whether the
    /// session continues.
    pub fn handle(&mut self, ports: &mut Ports, made: &Arc<OwnedFd>, hung_up: bool) -> bool {
        let start = Instant::now();
        for _ in 0..MAX_REQUESTS_PER_POLL {
            if start.elapsed() > TIME_SLICE {
                return true;
            }
            let mut resumed = None;
            if let Some(Waiting { request, pending, made: before }) = self.waiting.take() {
                match pending.made() {
                    _ if hung_up => return false,
                    None => {
                        self.waiting = Some(Waiting { request, pending, made: before });
                        return true;
                    }
                    Some(more) => {
                        let own = more.map(|more| before.into_iter().chain(more).collect());
                        resumed = Some(Resumed { request, own });
                    }
                }
            }
            match self.handle_one(ports, made, resumed) {
                Err(_) => return false,
                Ok(0) => return true,
                Ok(_) => {}
            }
        }
        true
    }

    /// Executes a request whose memory was allocated, or the next one.
    fn handle_one(
        &mut self,
        ports: &mut Ports,
        made: &Arc<OwnedFd>,
        mut resumed: Option<Resumed>,
    ) -> Result<usize, ConnectionLost> {
        let Self { message_loop, registration, external, program, waiting, status } = self;
        message_loop.handle(1, |stream| {
            let mut files = Vec::new();
            let Resumed { request, own } = match resumed.take() {
                Some(resumed) => resumed,
                None => {
                    let Some(request) = stream.arrived().first_chunk().map(Request::parse) else { return Ok(false) };
                    (_, files) = stream.take(Request::LEN);
                    Resumed { request, own: Ok(Vec::new()) }
                }
            };
            let mut requester = Requester { program: *program, made: Vec::new() };
            let answer = own.and_then(|own| {
                requester.made = own;
                if let Some(pending) = make_memory(&request, registration, ports, &requester, made)? {
                    *waiting =
                        Some(Waiting { request: request.clone(), pending, made: std::mem::take(&mut requester.made) });
                    return Ok(None);
                }
                if let Some(offset) = request.as_status() {
                    return page_of_status(status, offset, program.uid, ports).map(|page| Some((page, Vec::new())));
                }
                if let Some((asked, offset)) = request.as_external() {
                    let granted = bring_memory((registration, external), ports, files, (offset, &asked))?;
                    return Ok(Some((Reply::granted(&granted), Vec::new())));
                }
                if !files.is_empty() {
                    return Err(RequestError::new(Errno::INVAL, "a request with file descriptors"));
                }
                match request.kind() {
                    ADOPT => return ports.adopt(program.uid, request.cookie()).map(Some),
                    UNREGISTER => {
                        registration.take().into_iter().for_each(|registration| ports.unregister(registration));
                        return Ok(Some((Reply::granted(&[]), Vec::new())));
                    }
                    _ => {}
                }
                if let Some(asked) = request.as_offsets() {
                    let none = || RequestError::new(Errno::NXIO, "offsets of a connection without a port");
                    let granted = ports.set_offsets(registration.as_ref().ok_or_else(none)?, &asked)?;
                    return Ok(Some((Reply::granted(&granted.bytes()), Vec::new())));
                }
                execute(&request, registration, ports, &mut requester).map(Some)
            });
            // Allocated, but not needed any more.
            requester.made.into_iter().for_each(PrivateMemory::release);
            let refused = |RequestError { errno, why }| Some((Reply::text(Some(errno), why), Vec::new()));
            if let Some((reply, fds)) = answer.unwrap_or_else(refused) {
                stream.send(reply.bytes(), fds)?;
            }
            Ok(true)
        })
    }

    /// Ends the session: frees the registration.
    pub fn end(self, ports: &mut Ports) {
        self.registration.into_iter().for_each(|registration| ports.unregister(registration));
        self.external.into_iter().for_each(|id| ports.leave_external(id));
    }
}

fn stream(socket: OwnedFd) -> Stream {
    Stream::new(socket, 4 * Request::LEN, Descriptors::Checked)
}

/// Makes a memory of the file that came with a request, one for each connection. Returns the body of the reply.
fn bring_memory(
    (registration, external): (&Option<Registration>, &mut Option<u16>),
    ports: &mut Ports,
    files: Vec<OwnedFd>,
    (offset, asked): (u64, &AskedMemory),
) -> Result<Vec<u8>, RequestError> {
    let Ok([file]) = <[OwnedFd; 1]>::try_from(files) else {
        return Err(RequestError::new(Errno::INVAL, "a memory without its file"));
    };
    if registration.is_some() {
        return Err(RequestError::new(Errno::BUSY, "this connection has a port already; open another one"));
    }
    // In place of one that an earlier attempt has brought along.
    external.take().into_iter().for_each(|id| ports.leave_external(id));
    let granted = ports.bring_memory(file, offset, asked)?;
    *external = Some(granted.id);
    info::external(ports, &granted)
}

/// Starts to allocate the memory that a request needs and does not have yet; `None` if it needs none.
fn make_memory(
    request: &Request,
    registration: &Option<Registration>,
    ports: &Ports,
    requester: &Requester,
    made: &Arc<OwnedFd>,
) -> Result<Option<PendingMemory>, RequestError> {
    if [STATUS, OFFSETS, EXTERNAL, ADOPT, UNREGISTER].contains(&request.kind()) {
        return Ok(None);
    }
    let header = Header::parse(&request.header)?;
    let (mut needs, held) = match header.kind {
        Kind::Register if registration.is_none() => (ports.needs(&header.name, &request.as_register()?)?, 0),
        // All persistent ports together may use what one program may.
        Kind::ValeNewif => {
            let needs = ports.needs_of_persistent(&header.name, &new_port(request), requester.program.uid)?;
            (needs, ports.persistent_bytes())
        }
        _ => return Ok(None),
    };
    for own in &requester.made {
        let pools: &Pools = own.region.pools();
        needs.iter().position(|needed| needed == pools).map(|at| needs.swap_remove(at));
    }
    let pending = (!needs.is_empty()).then(|| ports.budget.make(&header.name, needs, held, made));
    pending.transpose()
}

/// Returns a page of the status, which is made when the first page is asked for. `held` keeps it between pages.
fn page_of_status(
    held: &mut Option<Rc<str>>,
    offset: u64,
    user: u32,
    ports: &mut Ports,
) -> Result<Reply, RequestError> {
    let text = match held.take() {
        Some(text) if offset > 0 => text,
        _ if offset > 0 => {
            return Err(RequestError::new(Errno::INVAL, "no status has that much; ask for it from its start"));
        }
        _ => Rc::from(ports.status().to_string()),
    };
    let rest = usize::try_from(offset).ok().and_then(|offset| text.get(offset..));
    let rest = rest.ok_or_else(|| RequestError::new(Errno::INVAL, "no page of the status begins there"))?;
    let end = (0..=rest.len().min(STATUS_PAGE)).rev().find(|&end| rest.is_char_boundary(end)).unwrap_or(0);
    let page = &rest[..end];
    if page.len() < rest.len() {
        ports.hold_status(user, &text)?;
        *held = Some(text.clone());
    }
    Ok(Reply::page(text.len() as u64, page))
}

/// Parses the body of a request for a persistent port.
fn new_port(request: &Request) -> Register {
    NewPort::parse(request.body.first_chunk().expect("64 bytes")).into()
}

/// Parses the registration with which a port is attached (`NETMAP_REQ_VALE_ATTACH`). Without a mode, it has all rings.
fn attached_rings(request: &Request) -> Result<Register, RequestError> {
    let mut bytes = *request.body.first_chunk::<{ Register::LEN }>().expect("64 bytes");
    if bytes[MODE..MODE + 4] == [0; 4] {
        bytes[MODE..MODE + 4].copy_from_slice(&(Mode::AllNic as u32).to_le_bytes());
    }
    Ok(Register::parse(&bytes)?)
}

/// Offsets of the memory's number and of the mode in a registration.
const MEMORY_ID: usize = 32;
const MODE: usize = 36;

fn execute(
    request: &Request,
    registration: &mut Option<Registration>,
    ports: &mut Ports,
    requester: &mut Requester,
) -> Result<(Reply, Vec<OwnedFd>), RequestError> {
    let header = Header::parse(&request.header)?;
    match header.kind {
        Kind::Register if registration.is_some() => {
            Err(RequestError::new(Errno::BUSY, "this connection has a port already; open another one"))
        }
        Kind::Register => {
            let registered = ports.register(&header.name, &request.as_register()?, requester)?;
            if request.cookie() != 0 {
                ports.remember(requester.program.uid, request.cookie(), &registered);
            }
            let Registered { registration: new, register, pools, peer, fds, others } = registered;
            *registration = Some(new);
            let offset = ports.region(register.memory_id).map_or(0, Region::file_offset);
            Ok((Reply { pools, peer, text: others, ..Reply::registered(&register, offset) }, fds))
        }
        Kind::PortHdrGet => {
            let len = ports.header_len(&header.name)? as u32;
            done(&len.to_le_bytes())
        }
        Kind::PortHdrSet => {
            let [a, b, c, d, ..] = request.body;
            ports.set_header_len(&header.name, u32::from_le_bytes([a, b, c, d]), requester.program)?;
            done(&request.body[..4])
        }
        Kind::ValeNewif => {
            let (Shape { rings, slots, .. }, memory_id) =
                ports.create_persistent(&header.name, &new_port(request), requester)?;
            done(&NewPort { slots, rings, memory_id }.bytes())
        }
        Kind::ValeAttach => {
            let Attached { index, memory_id } =
                ports.attach(&header.name, &attached_rings(request)?, requester.program)?;
            let mut attached = request.body;
            attached[MEMORY_ID..MEMORY_ID + 2].copy_from_slice(&memory_id.to_le_bytes());
            attached[Register::LEN..].copy_from_slice(&u64::from(index).to_le_bytes());
            done(&attached)
        }
        Kind::ValeDetach => {
            let index = ports.detach(&header.name, requester.program)?;
            done(&u64::from(index).to_le_bytes())
        }
        Kind::ValeDelif => {
            ports.delete_persistent(&header.name, requester.program)?;
            done(&[])
        }
        Kind::ValePollingEnable => {
            let polling = ValePolling::parse(request.body.first_chunk().expect("64 bytes"));
            ports.poll_on(&header.name, Some(polling), requester.program)?;
            done(&request.body)
        }
        Kind::ValePollingDisable => {
            ports.poll_on(&header.name, None, requester.program)?;
            done(&request.body)
        }
        Kind::PortInfoGet => done(&info::port(ports, &header.name, &request.body, requester.program)?),
        Kind::PoolsInfoGet => done(&info::pools(ports, &header.name, &request.body, requester.program)?),
        Kind::ValeList => {
            let (body, text) = info::vale(ports, &header.name, &request.body)?;
            Ok((Reply { text, ..Reply::granted(&body) }, Vec::new()))
        }
        kind => Err(RequestError::new(Errno::OPNOTSUPP, format!("{kind:?} is not there; see 'ringpass vale --help'"))),
    }
}

fn done(body: &[u8]) -> Result<(Reply, Vec<OwnedFd>), RequestError> {
    Ok((Reply::granted(body), Vec::new()))
}
