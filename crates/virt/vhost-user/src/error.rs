//! Reasons for the end of a session.

use std::io;

use ringpass_ipc::{ConnectionLost, PeerTimeout};

use crate::{Command, Malformed};

/// Reason for the end of a session.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The front-end closed the connection between two messages.
    #[error("the front-end has closed the connection")]
    Closed,
    /// The front-end closed the connection in the middle of a message.
    #[error("the front-end has closed the connection in the middle of a message")]
    Truncated,
    /// A header is invalid.
    #[error("the front-end has sent {0}")]
    Malformed(#[from] Malformed),
    /// The front-end sent a reply although nothing was asked.
    #[error("the front-end has sent a reply, where nothing was asked")]
    Reply,
    /// A request was refused and the front-end did not ask for an acknowledgement.
    #[error("{0} was refused: {1}")]
    Refused(CommandName, String),
    /// The rest of a message did not arrive in time.
    #[error("the front-end has stopped in the middle of a message, or has said nothing at all")]
    MessageTimeout,
    /// The front-end does not read its replies.
    #[error("the front-end does not read its replies")]
    RepliesUnread,
    /// A message came with more file descriptors than any message has, or than this process may open.
    #[error("the front-end has sent more file descriptors than fit")]
    Descriptors,
    /// The front-end sent a file descriptor of a kind that might block the back-end.
    #[error(
        "the front-end has sent a file descriptor that is neither an eventfd nor a file in memory (a memfd, of /dev/shm or hugetlbfs)"
    )]
    Kind,
    /// The front-end's user has sent descriptors before whose `close` has not returned yet.
    #[error(
        "file descriptors that the front-end's user has sent before are not closed yet; does the file system that they are of answer?"
    )]
    Unclosed,
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
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Socket(io::Error),
}

impl From<PeerTimeout> for Ended {
    fn from(overdue: PeerTimeout) -> Self {
        match overdue {
            PeerTimeout::Message => Self::MessageTimeout,
            PeerTimeout::Replies => Self::RepliesUnread,
        }
    }
}

impl From<ConnectionLost> for Ended {
    fn from(lost: ConnectionLost) -> Self {
        match lost {
            ConnectionLost::Closed => Self::Closed,
            ConnectionLost::Truncated => Self::Truncated,
            ConnectionLost::Descriptors => Self::Descriptors,
            ConnectionLost::Kind => Self::Kind,
            ConnectionLost::Unclosed => Self::Unclosed,
            ConnectionLost::Socket(error) => Self::Socket(error),
        }
    }
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
