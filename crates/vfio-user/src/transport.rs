//! Messages on a socket that never waits. File descriptors come with the bytes of the message they belong to.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::{Answer, Ended, HEADER, Header, MAX_FDS, MAX_MESSAGE};

/// Bytes that are taken from the socket at a time: many posted writes.
const BUFFER: usize = 2 * MAX_MESSAGE;

/// Both directions of a session.
pub(crate) struct Transport {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    /// What has arrived and was not taken: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Bytes taken since the beginning.
    taken: u64,
    /// Descriptors that came up to some byte since the beginning.
    fds: VecDeque<(u64, OwnedFd)>,
    /// A message that the peer has no room for yet, and how much of it was sent.
    unsent: Option<(Answer, usize)>,
}

/// A message that has arrived.
pub(crate) struct Message {
    pub(crate) header: Header,
    /// Where its body lies, until the next one is received.
    pub(crate) body: Range<usize>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// What a look at the socket brought.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    Something,
    Nothing,
}

fn wait_or<T>(errno: Errno, later: T) -> Result<T, Ended> {
    match errno {
        Errno::AGAIN | Errno::INTR => Ok(later),
        Errno::PIPE | Errno::CONNRESET => Err(Ended::Closed),
        _ => Err(Ended::Socket(errno.into())),
    }
}

impl Transport {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self { socket, buffer, start: 0, end: 0, taken: 0, fds: VecDeque::new(), unsent: None }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether a part of a message has arrived and the rest has not.
    pub(crate) fn torn(&self) -> bool {
        self.start < self.end
    }

    /// The first message, if all of it has arrived.
    pub(crate) fn message(&mut self) -> Result<Option<Message>, Ended> {
        let Some(bytes) = self.buffer[self.start..self.end].first_chunk() else { return Ok(None) };
        let header = Header::parse(bytes)?;
        let size = header.size as usize;
        if size > self.end - self.start {
            return Ok(None);
        }
        let body = self.start + HEADER..self.start + size;
        self.start += size;
        self.taken += size as u64;
        let mut fds = Vec::new();
        // A read ends with the bytes that its descriptors came with, so these are this message's or an earlier one's.
        while self.fds.front().is_some_and(|&(at, _)| at <= self.taken) {
            fds.extend(self.fds.pop_front().map(|(_, fd)| fd));
        }
        Ok(Some(Message { header, body, fds }))
    }

    pub(crate) fn body(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Takes what has arrived. To be called when there is no whole message.
    pub(crate) fn receive(&mut self) -> Result<Arrived, Ended> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut room = [IoSliceMut::new(&mut self.buffer[self.end..])];
        let received = match recvmsg(&self.socket, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received,
            Err(errno) => return wait_or(errno, Arrived::Nothing),
        };
        self.end += received.bytes;
        let at = self.taken + self.end as u64;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds.map(|fd| (at, fd)));
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_FDS {
            return Err(Ended::Descriptors);
        }
        match received.bytes {
            0 if self.torn() => Err(Ended::Torn),
            0 => Err(Ended::Closed),
            _ => Ok(Arrived::Something),
        }
    }

    /// Sends a message, or what fits of it; the rest waits for [`flush`](Self::flush). One at a time.
    pub(crate) fn send(&mut self, answer: Answer) -> Result<(), Ended> {
        debug_assert!(self.unsent.is_none());
        self.unsent = Some((answer, 0));
        self.flush()
    }

    /// Whether a message waits to be sent.
    pub(crate) fn blocked(&self) -> bool {
        self.unsent.is_some()
    }

    pub(crate) fn flush(&mut self) -> Result<(), Ended> {
        while let Some((answer, sent)) = &mut self.unsent {
            let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
                assert!(fits, "no message has more than {MAX_FDS} descriptors");
            }
            let bytes = [IoSlice::new(&answer.bytes[*sent..])];
            match sendmsg(&self.socket, &bytes, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(more) => *sent += more,
                Err(Errno::INTR) => continue,
                Err(errno) => return wait_or(errno, ()),
            }
            // They went with the first byte.
            answer.fds.clear();
            if *sent == answer.bytes.len() {
                self.unsent = None;
            }
        }
        Ok(())
    }
}
