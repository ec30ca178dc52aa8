//! A session with a front-end: its socket and its state.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use ringpass_ipc::MessageLoop;
use rustix::event::PollFlags;

use crate::transport::{Message, next_message, stream};
use crate::{Device, Dispatcher, Ended};

/// A session with a front-end. It never blocks on the front-end.
pub struct Session {
    message_loop: MessageLoop,
    dispatcher: Dispatcher,
}

impl Session {
    /// Largest number of messages handled in one call, so that the caller can attend to other work.
    const BATCH: usize = 64;
    /// How long a front-end may leave a message incomplete or replies unread.
    pub const PEER_TIMEOUT: Duration = Duration::from_secs(10);

    /// Creates a session on a non-blocking socket.
    pub fn new(socket: OwnedFd, device: &dyn Device) -> Self {
        Self::with_timeout(socket, device, Self::PEER_TIMEOUT)
    }

    /// Creates a session as [`new`](Self::new) does, with another timeout for the front-end.
    pub fn with_timeout(socket: OwnedFd, device: &dyn Device, timeout: Duration) -> Self {
        Self { message_loop: MessageLoop::new(stream(socket), timeout), dispatcher: Dispatcher::new(device) }
    }

    /// Handles the messages that have arrived, without blocking, and checks for faults of the guest. Returns
    /// the number of messages handled.
    pub fn handle(&mut self, device: &mut dyn Device) -> Result<usize, Ended> {
        if let Some(fault) = device.fault() {
            return Err(fault);
        }
        if self.dispatcher.lost() {
            return Err(Ended::MemoryLost);
        }
        if self.dispatcher.has_slow_eventfd() {
            return Err(Ended::SlowEventfd);
        }
        let Self { message_loop, dispatcher } = self;
        message_loop.handle(Self::BATCH, |stream| {
            let Some(Message { header, payload, fds }) = next_message(stream)? else { return Ok(false) };
            if let Some(answer) = dispatcher.message(header, stream.bytes(payload), fds, device)? {
                stream.send(answer.bytes, answer.fds)?;
            }
            Ok(true)
        })
    }

    /// Returns whether descriptors of a message are still being received, by another process.
    pub fn is_receiving(&self) -> bool {
        self.message_loop.is_receiving()
    }

    /// Returns the descriptor and the events to wait for before the next call of [`handle`](Self::handle).
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags) {
        let (socket, flags) = self.message_loop.wait_on();
        (socket, flags)
    }

    /// Takes the first refusal since the last call, of those that the front-end was told of.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.dispatcher.take_refusal()
    }

    /// Ends the session: the device releases everything that came with it.
    pub fn end(self, why: &Ended, device: &mut dyn Device) {
        self.dispatcher.end(why, device);
    }
}
