//! A front-end's session: its socket, and where it stands.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringpass_peer::{Arrived, Stream};
use rustix::event::PollFlags;

use crate::transport::{Message, next_message, stream};
use crate::{Device, Dispatcher, Ended};

/// A front-end's session. It never waits for the front-end.
pub struct Session {
    stream: Stream,
    dispatcher: Dispatcher,
    /// Since when the front-end owes something: its first message, the rest of one, or a look at its replies.
    owing: Option<Instant>,
    greeted: bool,
    patience: Duration,
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
        let (stream, dispatcher) = (stream(socket), Dispatcher::new(device));
        Self { stream, dispatcher, owing: Some(Instant::now()), greeted: false, patience }
    }

    /// Handles what has arrived, without waiting, and looks after the guest. Returns how many messages that were.
    pub fn handle(&mut self, device: &mut dyn Device) -> Result<usize, Ended> {
        if let Some(fault) = device.fault() {
            return Err(Ended::Fault(fault));
        }
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
            match next_message(&mut self.stream)? {
                Some(Message { header, payload, fds }) => {
                    let payload = self.stream.bytes(payload);
                    if let Some(answer) = self.dispatcher.message(header, payload, fds, device)? {
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

    /// The front-end has to do something next. That it has not for too long is the end.
    fn owes(&mut self, moved: bool, ended: Ended) -> Result<(), Ended> {
        match self.owing {
            Some(since) if !moved && since.elapsed() > self.patience => return Err(ended),
            Some(_) if !moved => {}
            _ => self.owing = Some(Instant::now()),
        }
        Ok(())
    }

    /// What to wait on before handling more, and for what.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags) {
        let flags = if self.stream.blocked() { PollFlags::OUT } else { PollFlags::IN };
        (self.stream.socket(), flags)
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
