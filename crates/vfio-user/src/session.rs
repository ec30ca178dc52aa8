//! A client's session: its socket, and where it stands.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use ringpass_peer::Exchange;
use rustix::event::PollFlags;

use crate::transport::{Message, message, stream};
use crate::{Device, Dispatcher, Ended};

/// A client's session. It never waits for the client.
pub struct Session {
    exchange: Exchange,
    dispatcher: Dispatcher,
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
        Self { exchange: Exchange::new(stream(socket), patience), dispatcher: Dispatcher::default() }
    }

    /// Handles what has arrived, without waiting. Returns how many messages that were.
    pub fn handle(&mut self, device: &mut dyn Device) -> Result<usize, Ended> {
        if self.dispatcher.lost() {
            return Err(Ended::MemoryLost);
        }
        let Self { exchange, dispatcher } = self;
        exchange.handle(Self::BATCH, |stream| {
            let Some(Message { header, body, fds }) = message(stream)? else { return Ok(false) };
            if let Some(answer) = dispatcher.message(header, stream.bytes(body), fds, device)? {
                stream.send(answer.bytes, answer.fds)?;
            }
            Ok(true)
        })
    }

    /// What to wait on before handling more, and for what; and how long at most, if the client owes something.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags, Option<Duration>) {
        self.exchange.wait_on()
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
