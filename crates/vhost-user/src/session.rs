//! A front-end's session: its socket, and where it stands.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use ringpass_peer::Exchange;
use rustix::event::PollFlags;

use crate::transport::{Message, next_message, stream};
use crate::{Device, Dispatcher, Ended};

/// A front-end's session. It never waits for the front-end.
pub struct Session {
    exchange: Exchange,
    dispatcher: Dispatcher,
}

impl Session {
    /// Messages that are handled in one go, so that whoever drives the session gets a look at other things too.
    const BATCH: usize = 64;
    /// How long a front-end may owe something.
    pub const PATIENCE: Duration = Duration::from_secs(10);

    /// A session on a socket that does not wait.
    pub fn new(socket: OwnedFd, device: &dyn Device) -> Self {
        Self::with_patience(socket, device, Self::PATIENCE)
    }

    /// As [`new`](Self::new), with another limit on what a front-end may leave undone.
    pub fn with_patience(socket: OwnedFd, device: &dyn Device, patience: Duration) -> Self {
        Self { exchange: Exchange::new(stream(socket), patience), dispatcher: Dispatcher::new(device) }
    }

    /// Handles what has arrived, without waiting, and looks after the guest. Returns how many messages that were.
    pub fn handle(&mut self, device: &mut dyn Device) -> Result<usize, Ended> {
        if let Some(fault) = device.fault() {
            return Err(Ended::Fault(fault));
        }
        if self.dispatcher.lost() {
            return Err(Ended::MemoryLost);
        }
        let Self { exchange, dispatcher } = self;
        exchange.handle(Self::BATCH, |stream| {
            let Some(Message { header, payload, fds }) = next_message(stream)? else { return Ok(false) };
            if let Some(answer) = dispatcher.message(header, stream.bytes(payload), fds, device)? {
                stream.send(answer.bytes, answer.fds)?;
            }
            Ok(true)
        })
    }

    /// What to wait on before handling more, and for what.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags) {
        let (socket, flags, _) = self.exchange.wait_on();
        (socket, flags)
    }

    /// The first refusal since this was last asked for, of those that the front-end was told of.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.dispatcher.take_refusal()
    }

    /// Ends the session: the device lets go of all that came with it.
    pub fn end(self, why: &Ended, device: &mut dyn Device) {
        self.dispatcher.end(why, device);
    }
}
