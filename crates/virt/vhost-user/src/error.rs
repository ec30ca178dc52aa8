//! Reasons for the end of a session.

use ringpass_ipc::ConnectionLost;

use crate::{Command, Malformed};

/// Reason for the end of a session.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The connection is over.
    #[error("{}", .0.describe("the front-end"))]
    Lost(#[from] ConnectionLost),
    /// A header is invalid.
    #[error("the front-end has sent {0}")]
    Malformed(#[from] Malformed),
    /// The front-end sent a reply although nothing was asked.
    #[error("the front-end has sent a reply, where nothing was asked")]
    Reply,
    /// A request was refused and the front-end did not ask for an acknowledgement.
    #[error("{0} was refused: {1}")]
    Refused(CommandName, String),
    /// Signals to an eventfd that took longer than a millisecond each have together taken too long.
    #[error("an eventfd of the front-end takes more than 1 ms to be signalled; how many wait for it?")]
    SlowEventfd,
    /// The front-end has truncated or punched a file of shared memory.
    #[error("the front-end has cut short a file of memory that it had shared")]
    MemoryLost,
    /// The guest violated the rules of its rings.
    #[error("{0}")]
    Fault(String),
    /// The guest's memory kept the device waiting again and again.
    #[error("{0}")]
    SlowMemory(String),
    /// The back-end is shutting down.
    #[error("the port is closed")]
    Stopping,
}

/// A command number, displayed as the command's name if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandName(pub u32);

impl std::fmt::Display for CommandName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Command::of(self.0) {
            Some(command) => command.fmt(f),
            None => write!(f, "request {}", self.0),
        }
    }
}
