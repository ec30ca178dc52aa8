//! The front-end's end of a session: it asks and tells, and waits for answers no longer than it was told to.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringpass_peer::{Arrived, Lost, MAX_FDS, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::transport::{next_message, stream};
use crate::{Command, InflightArea, Kind, Reply, Request};

/// A session with a back-end. After the first call that fails for another reason than a refusal it is over, and all
/// further calls fail at once.
pub struct Frontend {
    stream: Stream,
    /// For each request, and for all until further notice.
    limit: Duration,
    deadline: Instant,
    /// Whether requests without an answer of their own are acknowledged.
    acknowledged: bool,
    /// Why it is over.
    over: Option<SessionError>,
}

/// Bytes that an area for what is in flight has at most.
const LARGEST_AREA: u64 = 1 << 30;

/// What goes wrong in a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The other end is gone.
    #[error("the back-end has closed the connection")]
    Closed,
    /// The other end does what no back-end does, or nothing.
    #[error("{0}")]
    Lost(String),
    /// The back-end did not do what it was asked to; the session goes on.
    #[error("the back-end refuses {0}")]
    Refused(Command),
}

impl From<Lost> for SessionError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Closed => Self::Closed,
            Lost::Torn => Self::Lost("the back-end has closed the connection in the middle of a message".into()),
            Lost::Descriptors => Self::Lost("the back-end has sent more file descriptors than fit".into()),
            Lost::Kind => Self::Lost(
                "the back-end has sent a file descriptor that is neither an eventfd nor a file in memory".into(),
            ),
            Lost::Socket(error) => Self::Lost(format!("the connection to the back-end failed: {error}")),
        }
    }
}

impl Frontend {
    /// A session over a socket that does not wait, of which every request is to be done within `limit`.
    pub fn new(socket: OwnedFd, limit: Duration) -> Self {
        let deadline = Instant::now() + Duration::from_secs(u32::MAX.into());
        Self { stream: stream(socket), limit, deadline, acknowledged: false, over: None }
    }

    /// All that follows is to be done within so long.
    pub fn allow(&mut self, all: Duration) {
        self.deadline = Instant::now() + all;
    }

    /// From now on the back-end says of each request whether it was done
    /// ([`REPLY_ACK`](crate::features::REPLY_ACK) was agreed on).
    pub fn expect_acknowledgements(&mut self) {
        self.acknowledged = true;
    }

    /// The socket, to wait on for the end: nothing comes from a back-end that was not asked.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    /// Whether the back-end is there, and has said nothing of its own accord.
    pub fn check(&mut self) -> Result<(), SessionError> {
        self.over.clone().map_or(Ok(()), Err)?;
        let silent = match self.stream.receive() {
            Ok(Arrived::Nothing) => Ok(()),
            Ok(Arrived::Something) => Err(SessionError::Lost("the back-end has answered what nobody asked".into())),
            Err(lost) => Err(lost.into()),
        };
        silent.map_err(|error| self.end(error))
    }

    /// Asks for a number: features, protocol features, queues.
    pub fn number(&mut self, request: &Request) -> Result<u64, SessionError> {
        match self.exchange(request, Vec::new())? {
            (Reply::Number(number), _) => Ok(number),
            _ => Err(self.strange(request.command())),
        }
    }

    /// Stops a ring and asks where it stands.
    pub fn vring_base(&mut self, ring: u32) -> Result<u32, SessionError> {
        match self.exchange(&Request::GetVringBase { index: ring }, Vec::new())? {
            (Reply::VringBase { index, base }, _) if index == ring => Ok(base),
            _ => Err(self.strange(Command::GetVringBase)),
        }
    }

    /// Asks for an area to note in what is in flight, with its file.
    pub fn inflight(&mut self, area: InflightArea) -> Result<(InflightArea, OwnedFd), SessionError> {
        match self.exchange(&Request::GetInflightFd(area), Vec::new())? {
            (Reply::Inflight(made), Some(file)) if (1..=LARGEST_AREA).contains(&made.size) => {
                Ok((InflightArea { size: made.size, offset: made.offset, ..area }, file))
            }
            _ => Err(self.strange(Command::GetInflightFd)),
        }
    }

    /// Tells the back-end something, with descriptors, and learns whether it was done if it says so.
    pub fn tell(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Result<(), SessionError> {
        if !self.acknowledged {
            return self.send(request, Kind::Request, fds, Instant::now() + self.limit);
        }
        match self.exchange(request, fds)? {
            (Reply::Number(0), None) => Ok(()),
            (Reply::Number(_), None) => Err(SessionError::Refused(request.command())),
            _ => Err(self.strange(request.command())),
        }
    }

    fn strange(&mut self, command: Command) -> SessionError {
        self.end(SessionError::Lost(format!("the back-end has answered {command} with something else")))
    }

    fn end(&mut self, error: SessionError) -> SessionError {
        let _ = rustix::net::shutdown(self.stream.socket(), rustix::net::Shutdown::Both);
        self.over.insert(error).clone()
    }

    /// Sends a request and waits for its answer.
    fn exchange(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Result<(Reply, Option<OwnedFd>), SessionError> {
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
        self.over.clone().map_or(Ok(()), Err)?;
        let sent = (|| {
            self.stream.send(request.message(kind), fds)?;
            while self.stream.blocked() {
                self.wait(PollFlags::OUT, limit)?;
                self.stream.flush()?;
            }
            Ok(())
        })();
        sent.map_err(|error| self.end(error))
    }

    fn answer(&mut self, command: Command, limit: Instant) -> Result<(Reply, Option<OwnedFd>), SessionError> {
        let lost = |why: String| Err(SessionError::Lost(format!("the back-end has sent {why}")));
        let message = loop {
            match next_message(&mut self.stream) {
                Ok(Some(message)) => break message,
                Ok(None) => {}
                Err(malformed) => return lost(malformed.to_string()),
            }
            if self.stream.receive()? == Arrived::Nothing {
                self.wait(PollFlags::IN, limit)?;
            }
        };
        let (header, mut fds) = (message.header, message.fds);
        if header.kind != Kind::Reply || header.command != command as u32 || self.stream.torn() {
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

    /// Waits for the socket, after it kept us waiting.
    fn wait(&self, flags: PollFlags, limit: Instant) -> Result<(), SessionError> {
        let left = limit.min(self.deadline).saturating_duration_since(Instant::now());
        if left.is_zero() {
            let limit = self.limit.as_secs_f32();
            return Err(SessionError::Lost(format!("the back-end does not answer in time ({limit} s for a request)")));
        }
        let failed = |errno| SessionError::Lost(format!("waiting for the back-end: {errno}"));
        let left = Timespec::try_from(left).map_err(|_| failed(Errno::INVAL))?;
        match poll(&mut [PollFd::from_borrowed_fd(self.stream.socket(), flags)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}
