//! Why a connection is over.

use std::io;

/// Most file descriptors in one message.
pub const MAX_FDS: usize = 16;

/// Reason why a connection is over.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.describe("the peer"))]
pub enum ConnectionLost {
    /// Closed between two messages.
    Closed,
    /// Closed in the middle of a message.
    Truncated,
    /// The first message, or the rest of a message, did not arrive in time.
    MessageTimeout,
    /// The peer did not read its replies in time.
    RepliesUnread,
    /// More descriptors than a message may carry, or than this process accepts.
    Descriptors,
    /// A descriptor whose use or `close` might block.
    Kind,
    /// The peer's user has sent descriptors before whose `close` has not returned yet.
    Unclosed,
    /// An error of the socket.
    Socket(io::Error),
}

impl ConnectionLost {
    /// Returns the reason in words, with the name of the peer, such as "the client".
    pub fn describe(&self, peer: &str) -> String {
        match self {
            Self::Closed => format!("{peer} has closed the connection"),
            Self::Truncated => format!("{peer} has closed the connection in the middle of a message"),
            Self::MessageTimeout => {
                format!("{peer} has stopped in the middle of a message, or has said nothing at all")
            }
            Self::RepliesUnread => format!("{peer} does not read its replies"),
            Self::Descriptors => format!("{peer} has sent more file descriptors than fit"),
            Self::Kind => format!(
                "{peer} has sent a file descriptor that is neither an eventfd nor a file in memory (a memfd, of /dev/shm or hugetlbfs)"
            ),
            Self::Unclosed => format!(
                "file descriptors that {peer}'s user has sent before are not closed yet; does the file system that they are of answer?"
            ),
            Self::Socket(error) => format!("the connection failed: {error}"),
        }
    }
}
