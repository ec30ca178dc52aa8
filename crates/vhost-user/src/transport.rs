//! Messages of this protocol on a socket that never waits.

use std::ops::Range;
use std::os::fd::OwnedFd;

use ringpass_peer::Stream;

use crate::{HEADER, Header, MAX_PAYLOAD, Malformed};

/// A connection's stream, on a socket that does not wait.
pub(crate) fn stream(socket: OwnedFd) -> Stream {
    Stream::new(socket, 2 * (HEADER + MAX_PAYLOAD))
}

/// A message that has arrived.
pub(crate) struct Message {
    pub(crate) header: Header,
    /// Where its payload lies in the stream, until more is received.
    pub(crate) payload: Range<usize>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The first message, if all of it has arrived.
pub(crate) fn next_message(stream: &mut Stream) -> Result<Option<Message>, Malformed> {
    let Some(bytes) = stream.arrived().first_chunk() else { return Ok(None) };
    let header = Header::parse(bytes)?;
    let size = HEADER + header.size as usize;
    if size > stream.arrived().len() {
        return Ok(None);
    }
    let (all, fds) = stream.take(size);
    Ok(Some(Message { header, payload: all.start + HEADER..all.end, fds }))
}
