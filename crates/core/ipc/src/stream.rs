//! Messages on a non-blocking socket. File descriptors arrive with the bytes of the message that they belong
//! to.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::closing::{Sender, admit, has_room};

/// Most file descriptors in one message.
pub const MAX_FDS: usize = 16;

/// Most file descriptors that the kernel passes with one message (`SCM_MAX_FD`).
const SCM_MAX_FD: usize = 253;

/// Receives bytes and the descriptors that come with them, without blocking. Returns `None` if nothing has
/// arrived. The descriptors are appended to `fds`, which may hold at most [`MAX_FDS`] in all; only eventfds and
/// files in memory are accepted.
///
/// # Errors
/// [`ConnectionLost::Descriptors`] for too many descriptors, [`ConnectionLost::Kind`] for one of another kind.
pub fn receive_from(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<Option<usize>, ConnectionLost> {
    receive(socket, room, fds, Sender::Peer)
}

fn receive(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    sender: Sender,
) -> Result<Option<usize>, ConnectionLost> {
    // Room for as many as can be sent: the kernel closes descriptors that do not fit during this call, which
    // may take as long as the peer likes.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let space = if has_room() { &mut space[..] } else { &mut [] };
    let mut control = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(room)], &mut control, flags) {
        Ok(received) => received,
        Err(errno) => return wait_or(errno, None),
    };
    let mut of_wrong_kind = false;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            for fd in more {
                let admitted = admit(fd, sender);
                of_wrong_kind |= admitted.is_none();
                fds.extend(admitted);
            }
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
        return Err(ConnectionLost::Descriptors);
    }
    if of_wrong_kind { Err(ConnectionLost::Kind) } else { Ok(Some(received.bytes)) }
}

/// Both directions of a connection.
pub struct Stream {
    socket: OwnedFd,
    sender: Sender,
    buffer: Box<[u8]>,
    /// Bytes that have arrived and were not taken: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Bytes taken since the beginning of the connection.
    taken: u64,
    /// Descriptors received, each with the number of bytes received since the beginning when it arrived.
    fds: VecDeque<(u64, OwnedFd)>,
    /// A message that was not sent completely because the peer has no room for it yet.
    unsent: Option<Unsent>,
}

struct Unsent {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    sent: usize,
}

/// Result of reading the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStatus {
    /// Bytes arrived, perhaps with descriptors.
    Data,
    /// Nothing has arrived.
    WouldBlock,
}

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
    /// An error of the socket.
    #[error("the connection failed: {0}")]
    Socket(io::Error),
}

fn wait_or<T>(errno: Errno, later: T) -> Result<T, ConnectionLost> {
    match errno {
        Errno::AGAIN | Errno::INTR => Ok(later),
        Errno::PIPE | Errno::CONNRESET => Err(ConnectionLost::Closed),
        _ => Err(ConnectionLost::Socket(errno.into())),
    }
}

impl Stream {
    /// Creates a stream on a non-blocking socket. It buffers up to `buffer` bytes, which is also the maximum
    /// size of a message.
    pub fn new(socket: OwnedFd, buffer: usize) -> Self {
        let buffer = vec![0; buffer].into_boxed_slice();
        Self { socket, sender: Sender::Peer, buffer, start: 0, end: 0, taken: 0, fds: VecDeque::new(), unsent: None }
    }

    /// Creates a stream to a helper process of our own, which connects for this one and passes sockets.
    pub(crate) fn to_helper(socket: OwnedFd, buffer: usize) -> Self {
        Self { sender: Sender::Helper, ..Self::new(socket, buffer) }
    }

    /// Returns the socket, to wait on.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the bytes that have arrived and were not taken.
    pub fn arrived(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns whether part of a message has arrived and the rest has not.
    pub fn has_partial_message(&self) -> bool {
        self.start < self.end
    }

    /// Takes the first message, which must have arrived completely and has `size` bytes. Returns its range in
    /// the buffer, valid until the next [`receive`](Self::receive), and the descriptors that came with it.
    ///
    /// # Panics
    /// If fewer than `size` bytes have arrived.
    pub fn take(&mut self, size: usize) -> (Range<usize>, Vec<OwnedFd>) {
        assert!(size <= self.end - self.start, "a message that has not arrived");
        let message = self.start..self.start + size;
        self.start += size;
        self.taken += size as u64;
        let mut fds = Vec::new();
        // A read ends with the bytes that its descriptors came with, so these belong to this message or an
        // earlier one.
        while self.fds.front().is_some_and(|&(at, _)| at <= self.taken) {
            fds.extend(self.fds.pop_front().map(|(_, fd)| fd));
        }
        (message, fds)
    }

    /// Returns the bytes of a message that was taken.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Receives what has arrived at the socket. Call this when the buffer holds no complete message.
    pub fn receive(&mut self) -> Result<ReadStatus, ConnectionLost> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut fds = Vec::new();
        let received = receive(self.socket.as_fd(), &mut self.buffer[self.end..], &mut fds, self.sender)?;
        let Some(bytes) = received else { return Ok(ReadStatus::WouldBlock) };
        self.end += bytes;
        let at = self.taken + self.end as u64;
        self.fds.extend(fds.into_iter().map(|fd| (at, fd)));
        if self.fds.len() > MAX_FDS {
            return Err(ConnectionLost::Descriptors);
        }
        match bytes {
            0 if self.has_partial_message() => Err(ConnectionLost::Truncated),
            0 => Err(ConnectionLost::Closed),
            _ => Ok(ReadStatus::Data),
        }
    }

    /// Sends a message, or as much of it as the socket takes; [`flush`](Self::flush) sends the rest. Only one
    /// message may be unsent at a time, and it may carry at most [`MAX_FDS`] descriptors.
    pub fn send(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<(), ConnectionLost> {
        debug_assert!(self.unsent.is_none());
        self.unsent = Some(Unsent { bytes, fds, sent: 0 });
        self.flush()
    }

    /// Returns whether part of a message remains to be sent.
    pub fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Sends as much of the unsent message as the socket takes.
    pub fn flush(&mut self) -> Result<(), ConnectionLost> {
        while let Some(Unsent { bytes, fds, sent }) = &mut self.unsent {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !borrowed.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(&borrowed));
                assert!(fits, "no message has more than {MAX_FDS} descriptors");
            }
            let rest = [IoSlice::new(&bytes[*sent..])];
            match sendmsg(&self.socket, &rest, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(more) => *sent += more,
                Err(Errno::INTR) => continue,
                Err(errno) => return wait_or(errno, ()),
            }
            // The descriptors went with the first byte.
            fds.clear();
            if *sent == bytes.len() {
                self.unsent = None;
            }
        }
        Ok(())
    }
}
