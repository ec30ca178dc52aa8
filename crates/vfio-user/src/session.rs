//! A client's session: its socket, and where it stands.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringpass_peer::{Arrived, Stream};
use rustix::event::PollFlags;

use crate::transport::{Message, message, stream};
use crate::{Device, Dispatcher, Ended};

/// A client's session. It never waits for the client.
pub struct Session {
    stream: Stream,
    dispatcher: Dispatcher,
    /// Since when the client owes something: its version, the rest of a message, or a look at its replies.
    owing: Option<Instant>,
    greeted: bool,
    patience: Duration,
}

impl Session {
    /// Messages that are handled in one go, so that the device gets its turn.
    const BATCH: usize = 256;
    /// How long a client may owe something.
    pub const PATIENCE: Duration = Duration::from_secs(10);

    /// A session on a socket that does not wait.
    pub fn new(socket: OwnedFd) -> Self {
        Self::with_patience(socket, Self::PATIENCE)
    }

    /// As [`new`](Self::new), with another limit on what a client may leave undone.
    pub fn with_patience(socket: OwnedFd, patience: Duration) -> Self {
        let (stream, dispatcher) = (stream(socket), Dispatcher::default());
        Self { stream, dispatcher, owing: Some(Instant::now()), greeted: false, patience }
    }

    /// Handles what has arrived, without waiting. Returns how many messages that were.
    pub fn handle(&mut self, device: &mut dyn Device) -> Result<usize, Ended> {
        if self.dispatcher.lost() {
            return Err(Ended::MemoryLost);
        }
        let mut handled = 0;
        while handled < Self::BATCH {
            self.stream.flush()?;
            if self.stream.blocked() {
                self.owes(handled > 0, Ended::Deaf)?;
                return Ok(handled);
            }
            match message(&mut self.stream)? {
                Some(Message { header, body, fds }) => {
                    let body = self.stream.bytes(body);
                    if let Some(answer) = self.dispatcher.message(header, body, fds, device)? {
                        self.stream.send(answer.bytes, answer.fds)?;
                    }
                    (handled, self.greeted) = (handled + 1, true);
                }
                None if self.stream.receive()? == Arrived::Nothing => {
                    if self.stream.torn() || !self.greeted {
                        self.owes(handled > 0, Ended::Stopped)?;
                    } else {
                        self.owing = None;
                    }
                    return Ok(handled);
                }
                None => {}
            }
        }
        self.owing = None;
        Ok(handled)
    }

    /// The client has to do something next. That it has not for too long is the end.
    fn owes(&mut self, moved: bool, ended: Ended) -> Result<(), Ended> {
        match self.owing {
            Some(since) if !moved && since.elapsed() > self.patience => return Err(ended),
            Some(_) if !moved => {}
            _ => self.owing = Some(Instant::now()),
        }
        Ok(())
    }

    /// What to wait on before handling more, and for what; and how long at most, if the client owes something.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags, Option<Duration>) {
        let flags = if self.stream.blocked() { PollFlags::OUT } else { PollFlags::IN };
        (self.stream.socket(), flags, self.owing.map(|since| self.patience.saturating_sub(since.elapsed())))
    }

    /// The first refusal since this was last asked for.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.dispatcher.take_refusal()
    }

    /// Takes everything back that the client has given to the device, and resets it.
    pub fn end(mut self, device: &mut dyn Device) {
        self.dispatcher.end(device);
    }
}
