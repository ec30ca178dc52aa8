//! Handles a peer's messages without blocking, and limits how long the peer may leave something undone.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::{ConnectionLost, ReadStatus, Stream};

/// A stream of messages, some of which are answered. Never blocks on the peer.
pub struct MessageLoop {
    stream: Stream,
    /// Time since which the peer owes a message; `None` if it owes nothing.
    waiting_since: Option<Instant>,
    got_first_message: bool,
    timeout: Duration,
}

impl MessageLoop {
    /// Creates a loop on a stream whose peer has `timeout` for whatever it owes.
    pub fn new(stream: Stream, timeout: Duration) -> Self {
        Self { stream, waiting_since: Some(Instant::now()), got_first_message: false, timeout }
    }

    /// Creates a loop on a stream on which another process has handled messages before.
    pub fn resume(stream: Stream, timeout: Duration) -> Self {
        Self { stream, waiting_since: None, got_first_message: true, timeout }
    }

    /// Duration of a turn, apart from its last message, so that a peer that sends without end leaves time for
    /// others.
    const TIME_SLICE: Duration = Duration::from_millis(1);

    /// Handles what has arrived, without blocking, for at most `most` messages and about a millisecond. `one`
    /// handles the first message and sends the answer; it returns whether that message had arrived completely.
    /// Returns the number of messages handled.
    pub fn handle<E: From<ConnectionLost>>(
        &mut self,
        most: usize,
        mut one: impl FnMut(&mut Stream) -> Result<bool, E>,
    ) -> Result<usize, E> {
        let (mut handled, start) = (0, Instant::now());
        while handled < most && (handled == 0 || start.elapsed() < Self::TIME_SLICE) {
            self.stream.flush()?;
            if self.stream.has_unsent() {
                self.check_timeout(handled > 0, ConnectionLost::RepliesUnread)?;
                return Ok(handled);
            }
            if one(&mut self.stream)? {
                (handled, self.got_first_message) = (handled + 1, true);
            } else if self.stream.receive()? == ReadStatus::WouldBlock {
                if self.stream.has_partial_message() || !self.got_first_message {
                    self.check_timeout(handled > 0, ConnectionLost::MessageTimeout)?;
                } else {
                    self.waiting_since = None;
                }
                return Ok(handled);
            }
        }
        self.waiting_since = None;
        Ok(handled)
    }

    /// Records that it is the peer's turn. Fails with `what` if it has made no progress within its timeout.
    fn check_timeout(&mut self, moved: bool, what: ConnectionLost) -> Result<(), ConnectionLost> {
        match self.waiting_since {
            Some(since) if !moved && since.elapsed() > self.timeout => return Err(what),
            Some(_) if !moved => {}
            _ => self.waiting_since = Some(Instant::now()),
        }
        Ok(())
    }

    /// Returns whether no message has arrived or was sent in part.
    pub fn is_between(&self) -> bool {
        self.stream.is_between()
    }

    /// Returns the socket for whoever goes on with the connection; see [`Stream::into_socket`].
    pub fn into_socket(self) -> Option<OwnedFd> {
        self.stream.into_socket()
    }

    /// Returns the peer's socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    /// Returns whether descriptors have arrived that are still being received.
    pub fn is_receiving(&self) -> bool {
        self.stream.is_receiving()
    }

    /// Returns the descriptor and the events to wait for before handling more.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags) {
        self.stream.wait_on()
    }

    /// Returns the time that the peer has left for what it owes; `None` if it owes nothing.
    pub fn time_left(&self) -> Option<Duration> {
        self.waiting_since.map(|since| self.timeout.saturating_sub(since.elapsed()))
    }
}
