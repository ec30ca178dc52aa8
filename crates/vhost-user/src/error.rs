//! Why a session ends.

use std::io;

use ringpass_peer::{Lost, Overdue};

use crate::{Command, Malformed};

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// As it should.
    #[error("the front-end has closed the connection")]
    Closed,
    /// In the middle of a message.
    #[error("the front-end has closed the connection in the middle of a message")]
    Torn,
    /// A header that cannot be.
    #[error("the front-end has sent {0}")]
    Malformed(#[from] Malformed),
    /// A reply, where nothing was asked.
    #[error("the front-end has sent a reply, where nothing was asked")]
    Reply,
    /// A request that was refused, and there is no way to say so.
    #[error("{0} was refused: {1}")]
    Refused(Name, String),
    /// The rest of a message does not come.
    #[error("the front-end has stopped in the middle of a message, or has said nothing at all")]
    Stopped,
    /// Replies are not read.
    #[error("the front-end does not read its replies")]
    Deaf,
    /// More descriptors than any message has, or than this process may have.
    #[error("the front-end has sent more file descriptors than fit")]
    Descriptors,
    /// A descriptor that might keep the back-end waiting.
    #[error(
        "the front-end has sent a file descriptor that is neither an eventfd nor a file in memory (a memfd, of /dev/shm or hugetlbfs)"
    )]
    Kind,
    /// Memory has been taken away.
    #[error("the front-end has cut short a file of memory that it had shared")]
    MemoryLost,
    /// What the guest did with its rings.
    #[error("{0}")]
    Fault(String),
    /// This end wants to end.
    #[error("the port is closed")]
    Stopping,
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Socket(io::Error),
}

impl From<Overdue> for Ended {
    fn from(overdue: Overdue) -> Self {
        match overdue {
            Overdue::Message => Self::Stopped,
            Overdue::Replies => Self::Deaf,
        }
    }
}

impl From<Lost> for Ended {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Closed => Self::Closed,
            Lost::Torn => Self::Torn,
            Lost::Descriptors => Self::Descriptors,
            Lost::Kind => Self::Kind,
            Lost::Socket(error) => Self::Socket(error),
        }
    }
}

/// A command by its number: its name, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(pub u32);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Command::of(self.0) {
            Some(command) => command.fmt(f),
            None => write!(f, "request {}", self.0),
        }
    }
}
