//! Messages on a socket that never waits. File descriptors come with the bytes of the message they belong to.

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

/// File descriptors that one message carries at most.
pub const MAX_FDS: usize = 16;

/// File descriptors that the kernel passes on with one message at most (`SCM_MAX_FD`).
const MOST_PASSED: usize = 253;

/// Receives bytes, and the descriptors that come with them: eventfds and files in memory, at most [`MAX_FDS`] with those in
/// `fds`. A socket that does not wait is not waited for.
///
/// # Errors
/// [`Lost::Descriptors`] and [`Lost::Kind`] for descriptors that are not taken; `None` where there is nothing yet.
pub fn receive_from(socket: BorrowedFd<'_>, room: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<Option<usize>, Lost> {
    receive(socket, room, fds, Sender::Peer)
}

fn receive(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    sender: Sender,
) -> Result<Option<usize>, Lost> {
    // Room for all: what does not fit the kernel would close here and now, which may take as long as the peer likes.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PASSED))];
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
        return Err(Lost::Descriptors);
    }
    if of_wrong_kind { Err(Lost::Kind) } else { Ok(Some(received.bytes)) }
}

/// Both directions of a connection.
pub struct Stream {
    socket: OwnedFd,
    sender: Sender,
    buffer: Box<[u8]>,
    /// What has arrived and was not taken: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Bytes taken since the beginning.
    taken: u64,
    /// Descriptors that came up to some byte since the beginning.
    fds: VecDeque<(u64, OwnedFd)>,
    /// A message that the peer has no room for yet, and how much of it was sent.
    unsent: Option<Unsent>,
}

struct Unsent {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    sent: usize,
}

/// What a look at the socket brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Bytes, perhaps with descriptors.
    Something,
    /// Nothing yet.
    Nothing,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// As it should.
    #[error("the peer has closed the connection")]
    Closed,
    /// In the middle of a message.
    #[error("the peer has closed the connection in the middle of a message")]
    Torn,
    /// More descriptors than any message has, or than this process may have.
    #[error("the peer has sent more file descriptors than fit")]
    Descriptors,
    /// A descriptor that might keep whoever uses or closes it waiting.
    #[error(
        "the peer has sent a file descriptor that is neither an eventfd nor a file in memory (a memfd, of /dev/shm or hugetlbfs)"
    )]
    Kind,
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Socket(io::Error),
}

fn wait_or<T>(errno: Errno, later: T) -> Result<T, Lost> {
    match errno {
        Errno::AGAIN | Errno::INTR => Ok(later),
        Errno::PIPE | Errno::CONNRESET => Err(Lost::Closed),
        _ => Err(Lost::Socket(errno.into())),
    }
}

impl Stream {
    /// A connection on a socket that does not wait, of which up to `buffer` bytes are taken at a time: no message may be
    /// longer.
    pub fn new(socket: OwnedFd, buffer: usize) -> Self {
        let buffer = vec![0; buffer].into_boxed_slice();
        Self { socket, sender: Sender::Peer, buffer, start: 0, end: 0, taken: 0, fds: VecDeque::new(), unsent: None }
    }

    /// A connection to a process of our own that connects for this one, and passes sockets.
    pub(crate) fn to_helper(socket: OwnedFd, buffer: usize) -> Self {
        Self { sender: Sender::Helper, ..Self::new(socket, buffer) }
    }

    /// The socket, to wait on.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What has arrived and was not taken.
    pub fn arrived(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether a part of a message has arrived and the rest has not.
    pub fn torn(&self) -> bool {
        self.start < self.end
    }

    /// Takes the first message, which has arrived and has `size` bytes: where it lies, until more is received, and what
    /// came with it.
    pub fn take(&mut self, size: usize) -> (Range<usize>, Vec<OwnedFd>) {
        assert!(size <= self.end - self.start, "a message that has not arrived");
        let message = self.start..self.start + size;
        self.start += size;
        self.taken += size as u64;
        let mut fds = Vec::new();
        // A read ends with the bytes that its descriptors came with, so these are this message's or an earlier one's.
        while self.fds.front().is_some_and(|&(at, _)| at <= self.taken) {
            fds.extend(self.fds.pop_front().map(|(_, fd)| fd));
        }
        (message, fds)
    }

    /// Bytes of a message that was taken.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Takes what has arrived from the socket. To be called when there is no whole message.
    pub fn receive(&mut self) -> Result<Arrived, Lost> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut fds = Vec::new();
        let received = receive(self.socket.as_fd(), &mut self.buffer[self.end..], &mut fds, self.sender)?;
        let Some(bytes) = received else { return Ok(Arrived::Nothing) };
        self.end += bytes;
        let at = self.taken + self.end as u64;
        self.fds.extend(fds.into_iter().map(|fd| (at, fd)));
        if self.fds.len() > MAX_FDS {
            return Err(Lost::Descriptors);
        }
        match bytes {
            0 if self.torn() => Err(Lost::Torn),
            0 => Err(Lost::Closed),
            _ => Ok(Arrived::Something),
        }
    }

    /// Sends a message, or what fits of it; the rest waits for [`flush`](Self::flush). One at a time, with at most
    /// [`MAX_FDS`] descriptors.
    pub fn send(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<(), Lost> {
        debug_assert!(self.unsent.is_none());
        self.unsent = Some(Unsent { bytes, fds, sent: 0 });
        self.flush()
    }

    /// Whether a message waits to be sent.
    pub fn blocked(&self) -> bool {
        self.unsent.is_some()
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) -> Result<(), Lost> {
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
            // They went with the first byte.
            fds.clear();
            if *sent == bytes.len() {
                self.unsent = None;
            }
        }
        Ok(())
    }
}
