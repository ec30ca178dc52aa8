//! What a peer does wrong, and what comes of it.

use std::borrow::Cow;
use std::io;

use rustix::io::Errno;

/// A command that is refused; the session goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// What the reply says.
    pub errno: Errno,
    /// What is wrong, for people.
    pub why: Cow<'static, str>,
}

impl Refusal {
    /// A refusal.
    pub fn new(errno: Errno, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into() }
    }

    /// A refusal of what makes no sense.
    pub fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Errno::INVAL, why)
    }
}

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// As it should.
    #[error("the client has closed the connection")]
    Closed,
    /// In the middle of a message.
    #[error("the client has closed the connection in the middle of a message")]
    Torn,
    /// A header that cannot be.
    #[error("the client has sent {0}")]
    Malformed(&'static str),
    /// A first message that is not VERSION, or of a version that is not spoken here.
    #[error("the client {0}")]
    Version(&'static str),
    /// The rest of a message does not come.
    #[error("the client has stopped in the middle of a message, or has not sent its version")]
    Stopped,
    /// Replies are not read.
    #[error("the client does not read its replies")]
    Deaf,
    /// More descriptors than agreed on, or than this process may have.
    #[error("the client has sent more file descriptors than fit")]
    Descriptors,
    /// A descriptor that might keep the server waiting.
    #[error(
        "the client has sent a file descriptor that is neither an eventfd nor a file in memory (a memfd, of /dev/shm or hugetlbfs)"
    )]
    Kind,
    /// Memory that the device may access has been taken away.
    #[error("the client has cut short a file of memory that it had given to the device")]
    MemoryLost,
    /// RAM that the device has no way into.
    #[error(
        "the client's memory is not shared; give QEMU '-object memory-backend-memfd,id=m0,size=…,share=on' and '-machine …,memory-backend=m0'"
    )]
    NotShared,
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Socket(io::Error),
}

/// What goes wrong on a client's side.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is none for a socket, or there are no sockets left.
    #[error(transparent)]
    Connecting(#[from] ringpass_peer::Error),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The server has ended the session, or sends what no server should. The session is over.
    #[error("{0}")]
    Lost(String),
    /// The server refused one command.
    #[error("the server refuses {command}: {errno}")]
    Refused {
        /// Which.
        command: &'static str,
        /// Why.
        errno: Errno,
    },
}
