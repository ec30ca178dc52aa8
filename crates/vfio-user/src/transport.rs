//! Messages of this protocol on a socket that never waits.

use std::ops::Range;
use std::os::fd::OwnedFd;

use ringpass_peer::{Lost, Overdue, Stream};

use crate::{Ended, HEADER, Header, MAX_MESSAGE};

/// Bytes that are taken from the socket at a time: many posted writes.
const BUFFER: usize = 2 * MAX_MESSAGE;

pub(crate) fn stream(socket: OwnedFd) -> Stream {
    Stream::new(socket, BUFFER)
}

/// A message that has arrived.
pub(crate) struct Message {
    pub(crate) header: Header,
    /// Where its body lies, until the next one is received.
    pub(crate) body: Range<usize>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The first message, if all of it has arrived.
pub(crate) fn message(stream: &mut Stream) -> Result<Option<Message>, Ended> {
    let Some(bytes) = stream.arrived().first_chunk() else { return Ok(None) };
    let header = Header::parse(bytes)?;
    let size = header.size as usize;
    if size > stream.arrived().len() {
        return Ok(None);
    }
    let (all, fds) = stream.take(size);
    Ok(Some(Message { header, body: all.start + HEADER..all.end, fds }))
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
