//! Errors of peers: refusals of commands, ends of sessions, and errors on the client's side.

use std::borrow::Cow;
use std::io;

use ringpass_ipc::ConnectionLost;
use ringpass_memory::{DmaMapError, DmaMapFault};
use rustix::io::Errno;

/// Reason why a command is refused. The session continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// Error number in the reply.
    pub errno: Errno,
    /// Explanation for people.
    pub why: Cow<'static, str>,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(errno: Errno, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into() }
    }

    /// Creates a refusal of an invalid command (`EINVAL`).
    pub fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Errno::INVAL, why)
    }
}

impl From<DmaMapError> for Refusal {
    fn from(error: DmaMapError) -> Self {
        let errno = match error.reason {
            DmaMapFault::Range => Errno::INVAL,
            DmaMapFault::Overlap => Errno::EXIST,
            DmaMapFault::Full => Errno::NOSPC,
        };
        Self::new(errno, error.to_string())
    }
}

/// Reason why a session has ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The connection is over, for any other reason than [`MessageTimeout`](Self::MessageTimeout).
    #[error("{}", .0.describe("the client"))]
    Lost(ConnectionLost),
    /// Invalid message header.
    #[error("the client has sent {0}")]
    Malformed(&'static str),
    /// The first message was not VERSION, or asked for an unsupported version.
    #[error("the client {0}")]
    Version(&'static str),
    /// The client did not send its version, or the rest of a message, in time.
    #[error("the client has stopped in the middle of a message, or has not sent its version")]
    MessageTimeout,
    /// Signals to an eventfd that took longer than a millisecond each have together taken too long.
    #[error("an eventfd of the client takes more than 1 ms to be signalled; how many wait for it?")]
    SlowEventfd,
    /// Memory that the device may access was truncated.
    #[error("the client has cut short a file of memory that it had given to the device")]
    MemoryLost,
    /// RAM that is not shared, so that the device cannot access it.
    #[error(
        "the client's memory is not shared; give QEMU '-object memory-backend-memfd,id=m0,size=…,share=on' and '-machine …,memory-backend=m0'"
    )]
    NotShared,
}

impl From<ConnectionLost> for Ended {
    fn from(lost: ConnectionLost) -> Self {
        match lost {
            ConnectionLost::MessageTimeout => Self::MessageTimeout,
            lost => Self::Lost(lost),
        }
    }
}

/// Errors on the client's side.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not valid for a socket, or no socket could be created.
    #[error(transparent)]
    Connecting(#[from] ringpass_ipc::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// The operation that failed.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The session is over: the server has ended it or sent something invalid, or the time limit has passed.
    #[error("{0}")]
    ConnectionLost(String),
    /// The server refused a command. The session continues.
    #[error("the server refuses {command}: {errno}")]
    Refused {
        /// Name of the command.
        command: &'static str,
        /// Error number in the reply.
        errno: Errno,
    },
}
