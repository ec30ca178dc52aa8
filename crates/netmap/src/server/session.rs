//! One program's connection.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ringpass_peer::{Credentials, Exchange, Lost, Overdue, Stream};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::budget::{Making, Own};
use super::ports::{Asking, Ports, Registered, Registration};
use super::{Refusal, info};
use crate::Pools;
use crate::protocol::{Granted, Reply, Request};
use crate::request::{Header, Kind, Register};

/// See the module.
pub struct Session {
    exchange: Exchange,
    registration: Option<Registration>,
    program: Credentials,
    /// A request that is carried out when its memory is there.
    waiting: Option<Waiting>,
}

/// See [`Session`].
struct Waiting {
    request: Request,
    making: Making,
    made: Vec<Own>,
}

/// For whatever a program has to do.
const PATIENCE: Duration = Duration::from_secs(10);
/// Messages of one program before the others have their turn.
const AT_ONCE: usize = 16;

/// A connection is over.
struct Over;

impl From<Lost> for Over {
    fn from(_: Lost) -> Self {
        Self
    }
}

impl From<Overdue> for Over {
    fn from(_: Overdue) -> Self {
        Self
    }
}

impl Session {
    /// Of a program that has connected.
    pub fn new(socket: OwnedFd, program: Credentials) -> Self {
        let exchange = Exchange::new(Stream::new(socket, 4 * Request::LEN), PATIENCE);
        Self { exchange, registration: None, program, waiting: None }
    }

    /// The program's user.
    pub fn user(&self) -> u32 {
        self.program.uid
    }

    /// What to wait for, and for how long.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags, Option<Duration>) {
        let (socket, flags, limit) = self.exchange.wait_on();
        // A program that waits for memory has its turn when that is there; meanwhile it may only hang up.
        if self.waiting.is_some() { (socket, PollFlags::empty(), None) } else { (socket, flags, limit) }
    }

    /// Whether memory is being made for the program.
    pub fn waits_for_memory(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the program has let its time pass.
    pub fn owes(&self) -> bool {
        self.wait_on().2.is_some_and(|left| left.is_zero())
    }

    /// Whether the program has a port.
    pub fn has(&self, port: &str) -> bool {
        self.registration.as_ref().is_some_and(|registration| registration.port() == port)
    }

    /// Does what the program asks for. `made` becomes readable when memory was made. Returns whether the program stays.
    pub fn handle(&mut self, ports: &mut Ports, made: &Arc<OwnedFd>, hung_up: bool) -> bool {
        for _ in 0..AT_ONCE {
            let mut resumed = None;
            if let Some(Waiting { request, making, made: before }) = self.waiting.take() {
                match making.made() {
                    _ if hung_up => return false,
                    None => {
                        self.waiting = Some(Waiting { request, making, made: before });
                        return true;
                    }
                    Some(more) => resumed = Some((request, more.map(|more| before.into_iter().chain(more).collect()))),
                }
            }
            match self.handle_one(ports, made, resumed) {
                Err(Over) => return false,
                Ok(0) => return true,
                Ok(_) => {}
            }
        }
        true
    }

    /// Carries out a request whose memory was made, or the next one.
    fn handle_one(
        &mut self,
        ports: &mut Ports,
        made: &Arc<OwnedFd>,
        mut resumed: Option<(Request, Result<Vec<Own>, Refusal>)>,
    ) -> Result<usize, Over> {
        let Self { exchange, registration, program, waiting } = self;
        exchange.handle(1, |stream| {
            let (request, own) = match resumed.take() {
                Some(resumed) => resumed,
                None => {
                    let Some(request) = stream.arrived().first_chunk().map(Request::parse) else { return Ok(false) };
                    stream.take(Request::LEN);
                    (request, Ok(Vec::new()))
                }
            };
            let mut asking = Asking { program: *program, made: Vec::new() };
            let answer = own.and_then(|own| {
                asking.made = own;
                if let Some(making) = make_memory(&request, registration, ports, &asking, made)? {
                    *waiting =
                        Some(Waiting { request: request.clone(), making, made: std::mem::take(&mut asking.made) });
                    return Ok(None);
                }
                answer(&request, registration, ports, &mut asking).map(Some)
            });
            // What was made and is not wanted any more.
            asking.made.into_iter().for_each(Own::release);
            let refused = |Refusal { errno, why }| Some((Reply::text(Some(errno), why), Vec::new()));
            if let Some((reply, fds)) = answer.unwrap_or_else(refused) {
                stream.send(reply.bytes(), fds)?;
            }
            Ok(true)
        })
    }

    /// The program is gone.
    pub fn end(self, ports: &mut Ports) {
        self.registration.into_iter().for_each(|registration| ports.unregister(registration));
    }
}

/// Begins to make the memory that a request needs and that was not made; `None` if there is nothing to be made.
fn make_memory(
    request: &Request,
    registration: &Option<Registration>,
    ports: &Ports,
    asking: &Asking,
    made: &Arc<OwnedFd>,
) -> Result<Option<Making>, Refusal> {
    if request.is_status() {
        return Ok(None);
    }
    let header = Header::parse(&request.header)?;
    let (asked, held) = match header.kind {
        Kind::Register if registration.is_none() => (request.as_register()?, 0),
        // Ports that stay without a program have one program's share together.
        Kind::ValeNewif => (new_interface(request), ports.kept()),
        _ => return Ok(None),
    };
    let mut needs = ports.needs(&header.name, &asked)?;
    for own in &asking.made {
        let pools: &Pools = own.region.pools();
        needs.iter().position(|needed| needed == pools).map(|at| needs.swap_remove(at));
    }
    let making = (!needs.is_empty()).then(|| ports.budget.make(&header.name, needs, held, made));
    making.transpose()
}

fn answer(
    request: &Request,
    registration: &mut Option<Registration>,
    ports: &mut Ports,
    asking: &mut Asking,
) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
    if request.is_status() {
        return Ok((Reply::text(None, ports.status().to_string()), Vec::new()));
    }
    carry_out(request, registration, ports, asking)
}

/// What a request for a new port of a switch asks for.
fn new_interface(request: &Request) -> Register {
    let mut asked = Register::default();
    for (to, from) in asked.slots.iter_mut().zip(request.body.chunks_exact(4)) {
        *to = u32::from_le_bytes(from.try_into().expect("four bytes"));
    }
    for (to, from) in asked.rings.iter_mut().zip(request.body[8..].chunks_exact(2)) {
        *to = u16::from_le_bytes(from.try_into().expect("two bytes"));
    }
    asked.memory_id = u16::from_le_bytes([request.body[12], request.body[13]]);
    asked
}

fn carry_out(
    request: &Request,
    registration: &mut Option<Registration>,
    ports: &mut Ports,
    asking: &mut Asking,
) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
    let header = Header::parse(&request.header)?;
    match header.kind {
        Kind::Register if registration.is_some() => {
            Err(Refusal::new(Errno::BUSY, "this connection has a port already; open another one"))
        }
        Kind::Register => {
            let Registered { registration: new, register, granted, fds, others } =
                ports.register(&header.name, &request.as_register()?, asking)?;
            *registration = Some(new);
            Ok((Reply { text: others, ..Reply::granted(&register.bytes(), granted) }, fds.into()))
        }
        // No port has a header in front of its frames.
        Kind::PortHdrGet => done(&[]),
        Kind::PortHdrSet if request.body[..4] == [0; 4] => done(&[]),
        Kind::ValeNewif => {
            let mut new = request.body;
            ports.keep(&header.name, Some((&new_interface(request), asking)))?;
            new[14..].fill(0);
            done(&new)
        }
        Kind::ValeAttach => {
            ports.switches().attach(&header.name)?;
            done(&request.body)
        }
        Kind::ValeDetach => {
            ports.switches().detach(&header.name)?;
            done(&[])
        }
        Kind::ValeDelif => {
            ports.keep(&header.name, None)?;
            done(&[])
        }
        Kind::PortInfoGet => done(&info::port(ports, &header.name, &request.body, asking.program)?),
        Kind::PoolsInfoGet => done(&info::pools(ports, &header.name, &request.body, asking.program)?),
        Kind::ValeList => {
            let (body, text) = info::vale(ports, &header.name, &request.body)?;
            Ok((Reply { text, ..Reply::granted(&body, Granted::default()) }, Vec::new()))
        }
        kind => Err(Refusal::new(Errno::OPNOTSUPP, format!("{kind:?} is not there; see 'ringpass vale --help'"))),
    }
}

fn done(body: &[u8]) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
    Ok((Reply::granted(body, Granted::default()), Vec::new()))
}
