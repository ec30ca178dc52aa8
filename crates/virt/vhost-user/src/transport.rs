//! Vhost-user messages on a non-blocking socket.

use std::ops::Range;
use std::os::fd::OwnedFd;

use ringpass_ipc::{Descriptors, Stream};

use crate::{HEADER, Header, MAX_PAYLOAD, Malformed};

/// Returns the stream of a connection, whose socket must be non-blocking.
pub(crate) fn stream(socket: OwnedFd) -> Stream {
    Stream::new(socket, 2 * (HEADER + MAX_PAYLOAD), Descriptors::Checked)
}

/// A message that has arrived.
pub(crate) struct Message {
    pub(crate) header: Header,
    /// Position of the payload in the stream, valid until more is received.
    pub(crate) payload: Range<usize>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Takes the first message from the stream if all of it has arrived.
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
