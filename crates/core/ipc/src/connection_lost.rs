//! Why a connection is over.

use std::io;

/// Most file descriptors in one message.
pub const MAX_FDS: usize = 16;

/// Reason why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionLost {
    /// Closed between two messages.
    #[error("the peer has closed the connection")]
    Closed,
    /// Closed in the middle of a message.
    #[error("the peer has closed the connection in the middle of a message")]
    Truncated,
    /// More descriptors than a message may carry, or than this process accepts.
    #[error("the peer has sent more file descriptors than fit")]
    Descriptors,
    /// A descriptor whose use or `close` might block.
    #[error(
        "the peer has sent a file descriptor that is neither an eventfd nor a file in memory (a memfd, of /dev/shm or hugetlbfs)"
    )]
    Kind,
    /// The peer's user has sent descriptors before whose `close` has not returned yet.
    #[error(
        "file descriptors that the peer's user has sent before are not closed yet; does the file system that they are of answer?"
    )]
    Unclosed,
    /// An error of the socket.
    #[error("the connection failed: {0}")]
    Socket(io::Error),
}
