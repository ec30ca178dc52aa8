//! The front-end's end of a session: sends requests and waits for replies within time limits.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringpass_ipc::{ConnectionLost, MAX_FDS, ReadStatus, Stream, wait_ready};

use crate::transport::{next_message, stream};
use crate::{Command, InflightArea, Kind, Reply, Request};

/// A session with a back-end. It is over after the first call that fails for any reason but a refusal; all
/// later calls then fail at once.
pub struct Frontend {
    stream: Stream,
    /// Time limit of each request, and the deadline of all requests together.
    limit: Duration,
    deadline: Instant,
    /// Whether requests without a reply of their own are acknowledged.
    reply_ack: bool,
    /// Why the session is over.
    ended: Option<SessionError>,
}

/// Largest accepted size in bytes of an area that records chains in flight.
const MAX_INFLIGHT_SIZE: u64 = 1 << 30;

/// Error of a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The back-end closed the connection.
    #[error("the back-end has closed the connection")]
    Closed,
    /// The back-end violated the protocol, did not answer in time, or the connection failed.
    #[error("{0}")]
    ConnectionLost(String),
    /// The back-end refused a request; the session continues.
    #[error("the back-end refuses {0}")]
    Refused(Command),
}

impl From<SessionError> for ringpass_port::Error {
    fn from(error: SessionError) -> Self {
        let text = error.to_string();
        match error {
            SessionError::Closed | SessionError::ConnectionLost(_) => Self::Gone(text),
            SessionError::Refused(_) => Self::Unsupported(text),
        }
    }
}

impl From<ConnectionLost> for SessionError {
    fn from(lost: ConnectionLost) -> Self {
        match lost {
            ConnectionLost::Closed => Self::Closed,
            ConnectionLost::Kind => Self::ConnectionLost(
                "the back-end has sent a file descriptor that is neither an eventfd nor a file in memory".into(),
            ),
            ConnectionLost::Socket(error) => {
                Self::ConnectionLost(format!("the connection to the back-end failed: {error}"))
            }
            lost => Self::ConnectionLost(lost.describe("the back-end")),
        }
    }
}

impl Frontend {
    /// Creates a session over a non-blocking socket. Every request must be done within `limit`.
    pub fn new(socket: OwnedFd, limit: Duration) -> Self {
        let deadline = Instant::now() + Duration::from_secs(u32::MAX.into());
        Self { stream: stream(socket), limit, deadline, reply_ack: false, ended: None }
    }

    /// Sets a deadline, `all` from now, by which all further requests must be done.
    pub fn set_time_limit(&mut self, all: Duration) {
        self.deadline = Instant::now() + all;
    }

    /// Makes the back-end acknowledge each request from now on. Requires that
    /// [`REPLY_ACK`](crate::features::REPLY_ACK) was negotiated.
    pub fn enable_reply_ack(&mut self) {
        self.reply_ack = true;
    }

    /// Returns the socket, to be watched for the end of the connection: a back-end sends nothing unasked.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    /// Checks that the back-end is still connected and has sent nothing unasked.
    pub fn check(&mut self) -> Result<(), SessionError> {
        self.ended.clone().map_or(Ok(()), Err)?;
        let silent = match self.stream.receive() {
            Ok(ReadStatus::WouldBlock) if !self.stream.has_partial_message() => Ok(()),
            Ok(_) => Err(SessionError::ConnectionLost("the back-end has sent a reply that nobody requested".into())),
            Err(lost) => Err(lost.into()),
        };
        silent.map_err(|error| self.end(error))
    }

    /// Sends a request that is answered by a number: features, protocol features, number of queues.
    pub fn number(&mut self, request: &Request) -> Result<u64, SessionError> {
        match self.transact(request, Vec::new())? {
            (Reply::Number(number), _) => Ok(number),
            _ => Err(self.unexpected_reply(request.command())),
        }
    }

    /// Stops a ring and returns its position.
    pub fn vring_base(&mut self, ring: u32) -> Result<u32, SessionError> {
        match self.transact(&Request::GetVringBase { index: ring }, Vec::new())? {
            (Reply::VringBase { index, base }, _) if index == ring => Ok(base),
            _ => Err(self.unexpected_reply(Command::GetVringBase)),
        }
    }

    /// Requests an area that records chains in flight, with its file.
    pub fn inflight(&mut self, area: InflightArea) -> Result<(InflightArea, OwnedFd), SessionError> {
        match self.transact(&Request::GetInflightFd(area), Vec::new())? {
            (Reply::Inflight(made), Some(file)) if (1..=MAX_INFLIGHT_SIZE).contains(&made.size) => {
                Ok((InflightArea { size: made.size, offset: made.offset, ..area }, file))
            }
            _ => Err(self.unexpected_reply(Command::GetInflightFd)),
        }
    }

    /// Sends a request with file descriptors. With acknowledgements enabled, waits for the result.
    pub fn send_request(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Result<(), SessionError> {
        if !self.reply_ack {
            return self.send(request, Kind::Request, fds, Instant::now() + self.limit);
        }
        match self.transact(request, fds)? {
            (Reply::Number(0), None) => Ok(()),
            (Reply::Number(_), None) => Err(SessionError::Refused(request.command())),
            _ => Err(self.unexpected_reply(request.command())),
        }
    }

    fn unexpected_reply(&mut self, command: Command) -> SessionError {
        self.end(SessionError::ConnectionLost(format!("the back-end has answered {command} with something else")))
    }

    fn end(&mut self, error: SessionError) -> SessionError {
        let _ = rustix::net::shutdown(self.stream.socket(), rustix::net::Shutdown::Both);
        self.ended.insert(error).clone()
    }

    /// Sends a request and waits for its reply.
    fn transact(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Result<(Reply, Option<OwnedFd>), SessionError> {
        let limit = Instant::now() + self.limit;
        let own = matches!(
            request.command(),
            Command::GetFeatures
                | Command::GetProtocolFeatures
                | Command::GetQueueNum
                | Command::GetVringBase
                | Command::GetInflightFd
        );
        let kind = if own { Kind::Request } else { Kind::NeedsReply };
        self.send(request, kind, fds, limit)?;
        self.answer(request.command(), limit).map_err(|error| self.end(error))
    }

    fn send(&mut self, request: &Request, kind: Kind, fds: Vec<OwnedFd>, limit: Instant) -> Result<(), SessionError> {
        assert!(fds.len() <= MAX_FDS);
        self.ended.clone().map_or(Ok(()), Err)?;
        let sent = (|| {
            self.stream.send(request.message(kind), fds)?;
            while self.stream.has_unsent() {
                self.wait(limit)?;
                self.stream.flush()?;
            }
            Ok(())
        })();
        sent.map_err(|error| self.end(error))
    }

    fn answer(&mut self, command: Command, limit: Instant) -> Result<(Reply, Option<OwnedFd>), SessionError> {
        let lost = |why: String| Err(SessionError::ConnectionLost(format!("the back-end has sent {why}")));
        let message = loop {
            match next_message(&mut self.stream) {
                Ok(Some(message)) => break message,
                Ok(None) => {}
                Err(malformed) => return lost(malformed.to_string()),
            }
            if self.stream.receive()? == ReadStatus::WouldBlock {
                self.wait(limit)?;
            }
        };
        let (header, mut fds) = (message.header, message.fds);
        if header.kind != Kind::Reply || header.command != command as u32 || self.stream.has_partial_message() {
            return lost(format!("something else than one answer to {command}"));
        }
        let wanted = usize::from(command == Command::GetInflightFd);
        if fds.len() != wanted {
            return lost(format!("{} file descriptors with its answer to {command}; {wanted} belong there", fds.len()));
        }
        match Reply::parse(command, self.stream.bytes(message.payload)) {
            Ok(reply) => Ok((reply, fds.pop())),
            Err(refusal) => lost(format!("{refusal}, in its answer to {command}")),
        }
    }

    /// Waits until the stream is ready, or fails when time is up.
    fn wait(&self, limit: Instant) -> Result<(), SessionError> {
        let left = limit.min(self.deadline).saturating_duration_since(Instant::now());
        if left.is_zero() {
            let limit = self.limit.as_secs_f32();
            return Err(SessionError::ConnectionLost(format!(
                "the back-end does not answer in time ({limit} s for a request)"
            )));
        }
        let (fd, flags) = self.stream.wait_on();
        wait_ready(fd, flags, left)
            .map_err(|error| SessionError::ConnectionLost(format!("waiting for the back-end: {error}")))
    }
}
