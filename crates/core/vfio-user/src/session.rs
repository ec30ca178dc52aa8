//! A client's session: its socket and its state.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use ringpass_ipc::MessageLoop;
use rustix::event::PollFlags;

use crate::transport::{Message, message, stream};
use crate::{Device, Dispatcher, Ended};

/// A client's session. It never blocks on the client.
pub struct Session {
    message_loop: MessageLoop,
    dispatcher: Dispatcher,
}

impl Session {
    /// Most messages handled in one turn, so that the device gets its turn.
    const BATCH: usize = 256;
    /// Time for which a client may owe something.
    pub const PEER_TIMEOUT: Duration = Duration::from_secs(10);

    /// Creates a session on a non-blocking socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self::with_timeout(socket, Self::PEER_TIMEOUT)
    }

    /// Creates a session with another limit on the time for which a client may owe something.
    pub fn with_timeout(socket: OwnedFd, timeout: Duration) -> Self {
        Self { message_loop: MessageLoop::new(stream(socket), timeout), dispatcher: Dispatcher::default() }
    }

    /// Handles the messages that have arrived, without blocking. Returns their number.
    pub fn handle(&mut self, device: &mut dyn Device) -> Result<usize, Ended> {
        if self.dispatcher.lost() {
            return Err(Ended::MemoryLost);
        }
        let Self { message_loop, dispatcher } = self;
        if dispatcher.has_slow_eventfd() {
            return Err(Ended::SlowEventfd);
        }
        message_loop.handle(Self::BATCH, |stream| {
            let Some(Message { header, body, fds }) = message(stream)? else { return Ok(false) };
            if let Some(answer) = dispatcher.message(header, stream.bytes(body), fds, device)? {
                stream.send(answer.bytes, answer.fds)?;
            }
            Ok(true)
        })
    }

    /// Returns the client's socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.message_loop.socket()
    }

    /// Returns whether descriptors of a message are still being received, by another process.
    pub fn is_receiving(&self) -> bool {
        self.message_loop.is_receiving()
    }

    /// Returns the descriptor and the events to wait for before handling more.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags) {
        self.message_loop.wait_on()
    }

    /// Returns the first refusal since the last call.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.dispatcher.take_refusal()
    }

    /// Takes from the device everything that the client has given to it, and resets it.
    pub fn end(mut self, device: &mut dyn Device) {
        self.dispatcher.end(device);
    }
}
