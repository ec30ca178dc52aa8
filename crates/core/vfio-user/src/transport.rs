//! Messages of this protocol on a non-blocking socket.

use std::ops::Range;
use std::os::fd::OwnedFd;

use ringpass_ipc::{Descriptors, Stream};

use crate::{Ended, HEADER, Header, MAX_MESSAGE};

/// Most bytes read from the socket at a time; enough for many posted writes.
const BUFFER: usize = 2 * MAX_MESSAGE;

pub(crate) fn stream(socket: OwnedFd) -> Stream {
    Stream::new(socket, BUFFER, Descriptors::Checked)
}

/// A message that has arrived.
pub(crate) struct Message {
    pub(crate) header: Header,
    /// Range of its body in the stream's buffer, valid until the next receive.
    pub(crate) body: Range<usize>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Takes the first message, if it has arrived completely.
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
