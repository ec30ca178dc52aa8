//! One program's connection.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use ringpass_peer::{Exchange, Lost, Overdue, Stream};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::ports::{Ports, Registered, Registration};
use super::{Refusal, info};
use crate::protocol::{Granted, Reply, Request};
use crate::request::{Header, Kind};

/// See the module.
pub struct Session {
    exchange: Exchange,
    registration: Option<Registration>,
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
    pub fn new(socket: OwnedFd) -> Self {
        let exchange = Exchange::new(Stream::new(socket, 4 * Request::LEN), PATIENCE);
        Self { exchange, registration: None }
    }

    /// What to wait for, and for how long.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags, Option<Duration>) {
        self.exchange.wait_on()
    }

    /// Whether the program has let its time pass.
    pub fn owes(&self) -> bool {
        self.wait_on().2.is_some_and(|left| left.is_zero())
    }

    /// Whether the program has a port.
    pub fn has(&self, port: &str) -> bool {
        self.registration.as_ref().is_some_and(|registration| registration.port() == port)
    }

    /// Does what the program asks for. Returns whether it stays.
    pub fn handle(&mut self, ports: &mut Ports) -> bool {
        let Self { exchange, registration } = self;
        let handled: Result<usize, Over> = exchange.handle(AT_ONCE, |stream| {
            let Some(request) = stream.arrived().first_chunk().map(Request::parse) else { return Ok(false) };
            stream.take(Request::LEN);
            let (reply, fds) = answer(&request, registration, ports);
            stream.send(reply.bytes(), fds)?;
            Ok(true)
        });
        handled.is_ok()
    }

    /// The program is gone.
    pub fn end(self, ports: &mut Ports) {
        self.registration.into_iter().for_each(|registration| ports.unregister(registration));
    }
}

fn answer(request: &Request, registration: &mut Option<Registration>, ports: &mut Ports) -> (Reply, Vec<OwnedFd>) {
    let granted = if request.is_status() {
        Ok((Reply::text(None, ports.status().to_string()), Vec::new()))
    } else {
        carry_out(request, registration, ports)
    };
    granted.unwrap_or_else(|Refusal { errno, why }| (Reply::text(Some(errno), why), Vec::new()))
}

fn carry_out(
    request: &Request,
    registration: &mut Option<Registration>,
    ports: &mut Ports,
) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
    let header = Header::parse(&request.header)?;
    match header.kind {
        Kind::Register if registration.is_some() => {
            Err(Refusal::new(Errno::BUSY, "this connection has a port already; open another one"))
        }
        Kind::Register => {
            let Registered { registration: new, register, granted, fds } =
                ports.register(&header.name, &request.as_register()?)?;
            *registration = Some(new);
            Ok((Reply::granted(&register.bytes(), granted), fds.into()))
        }
        // No port has a header in front of its frames.
        Kind::PortHdrGet => done(&[]),
        Kind::PortHdrSet if request.body[..4] == [0; 4] => done(&[]),
        Kind::ValeNewif => {
            let mut new = request.body;
            let mut asked = crate::request::Register::default();
            for (to, from) in asked.slots.iter_mut().zip(new.chunks_exact(4)) {
                *to = u32::from_le_bytes(from.try_into().expect("four bytes"));
            }
            for (to, from) in asked.rings.iter_mut().zip(new[8..].chunks_exact(2)) {
                *to = u16::from_le_bytes(from.try_into().expect("two bytes"));
            }
            asked.memory_id = u16::from_le_bytes([new[12], new[13]]);
            ports.keep(&header.name, Some(&asked))?;
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
        Kind::PortInfoGet => done(&info::port(ports, &header.name, &request.body)?),
        Kind::PoolsInfoGet => done(&info::pools(ports, &header.name, &request.body)?),
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
