//! Messages on a non-blocking socket. File descriptors arrive with the bytes of the message that they belong
//! to.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags, Shutdown, recv, recvmsg, shutdown,
};

use crate::connection_lost::{ConnectionLost, MAX_FDS};
use crate::elsewhere::{close_memory, drop_elsewhere};
use crate::fd_receiver::{self, Pending};

/// Descriptors that a stream accepts from its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors {
    /// None: a message with descriptors ends the connection.
    Refused,
    /// Eventfds and files in memory (memfds, files of tmpfs and hugetlbfs). They are received and checked by
    /// [another process](crate::start_fd_receiver); this process never owns any other.
    Checked,
    /// Descriptors of any kind, received directly. Only for a peer that is trusted not to send one whose `close`
    /// blocks.
    Trusted,
}

/// Both directions of a connection.
pub struct Stream {
    socket: OwnedFd,
    /// Somebody else goes on with the connection.
    passed_on: bool,
    accepts: Descriptors,
    /// Descriptors that are being received.
    pending: Option<Pending>,
    buffer: Box<[u8]>,
    /// Bytes that have arrived and were not taken: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Bytes taken since the beginning of the connection.
    taken: u64,
    /// Descriptors received, each with the number of bytes received since the beginning when it arrived.
    fds: VecDeque<(u64, OwnedFd)>,
    /// Copies of the files in memory that came with the last message that was taken. So whoever took them closes
    /// none of them as the last one, which would free their memory then and there.
    kept: Vec<OwnedFd>,
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

fn wait_or<T>(errno: Errno, later: T) -> Result<T, ConnectionLost> {
    match errno {
        Errno::AGAIN | Errno::INTR => Ok(later),
        Errno::PIPE | Errno::CONNRESET => Err(ConnectionLost::Closed),
        _ => Err(ConnectionLost::Socket(errno.into())),
    }
}

impl Stream {
    /// Creates a stream on a non-blocking socket. It buffers up to `buffer` bytes, which is also the maximum
    /// size of a message, and accepts these descriptors.
    pub fn new(socket: OwnedFd, buffer: usize, accepts: Descriptors) -> Self {
        let buffer = vec![0; buffer].into_boxed_slice();
        Self {
            socket,
            passed_on: false,
            accepts,
            pending: None,
            buffer,
            start: 0,
            end: 0,
            taken: 0,
            fds: VecDeque::new(),
            kept: Vec::new(),
            unsent: None,
        }
    }

    /// Returns the socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the descriptor and the events to wait for before the next [`receive`](Self::receive) or
    /// [`flush`](Self::flush).
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags) {
        match &self.pending {
            _ if self.has_unsent() => (self.socket(), PollFlags::OUT),
            Some(pending) => (pending.socket(), PollFlags::IN),
            None => (self.socket(), PollFlags::IN),
        }
    }

    /// Returns the bytes that have arrived and were not taken.
    pub fn arrived(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns whether part of a message has arrived and the rest has not.
    pub fn has_partial_message(&self) -> bool {
        self.start < self.end || self.pending.is_some()
    }

    /// Returns whether descriptors have arrived that are still being received.
    pub fn is_receiving(&self) -> bool {
        self.pending.is_some()
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
        self.close_kept();
        if self.accepts == Descriptors::Checked {
            let in_memory = fds.iter().filter(|fd| fcntl_get_seals(fd).is_ok());
            self.kept = in_memory.filter_map(|fd| fd.try_clone().ok()).collect();
        }
        (message, fds)
    }

    /// Returns the bytes of a message that was taken.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Receives what has arrived at the socket. Call this when the buffer holds no complete message. Never blocks.
    pub fn receive(&mut self) -> Result<ReadStatus, ConnectionLost> {
        self.close_kept();
        if self.pending.is_some() {
            return self.receive_pending();
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.accepts == Descriptors::Trusted {
            return self.receive_directly();
        }
        // Without room for descriptors, a peek leaves them in the socket and tells that they are there.
        let Some(peeked) = self.receive_with(&mut RecvAncillaryBuffer::default(), RecvFlags::PEEK)? else {
            return Ok(ReadStatus::WouldBlock);
        };
        if !peeked.flags.contains(ReturnFlags::CTRUNC) {
            // The same bytes, so no descriptor comes with them.
            let bytes = &mut self.buffer[self.end..self.end + peeked.bytes];
            return match recv(&self.socket, bytes, RecvFlags::DONTWAIT) {
                Ok((_, bytes)) => self.received(bytes, Vec::new()),
                Err(errno) => wait_or(errno, ReadStatus::WouldBlock),
            };
        }
        if self.accepts == Descriptors::Refused {
            return Err(ConnectionLost::Descriptors);
        }
        self.pending = Some(Pending::new(self.socket.as_fd(), peeked.bytes)?);
        self.receive_pending()
    }

    /// Receives bytes and any descriptors that come with them.
    fn receive_directly(&mut self) -> Result<ReadStatus, ConnectionLost> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let Some(received) = self.receive_with(&mut control, RecvFlags::empty())? else {
            return Ok(ReadStatus::WouldBlock);
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ConnectionLost::Descriptors);
        }
        self.received(received.bytes, fds)
    }

    fn close_kept(&mut self) {
        self.kept.drain(..).for_each(close_memory);
    }

    /// Receives bytes into the free part of the buffer; `None` if nothing has arrived.
    fn receive_with(
        &mut self,
        control: &mut RecvAncillaryBuffer<'_>,
        flags: RecvFlags,
    ) -> Result<Option<RecvMsg>, ConnectionLost> {
        let free = self.end..self.buffer.len().min(self.end + fd_receiver::MAX_BYTES);
        let mut room = [IoSliceMut::new(&mut self.buffer[free])];
        let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(&self.socket, &mut room, control, flags).map_or_else(|errno| wait_or(errno, None), |all| Ok(Some(all)))
    }

    /// Takes descriptors that another process receives. The bytes that come with them were peeked into the buffer.
    fn receive_pending(&mut self) -> Result<ReadStatus, ConnectionLost> {
        let Some(pending) = &mut self.pending else { return Ok(ReadStatus::WouldBlock) };
        let Some(fds) = pending.poll()? else { return Ok(ReadStatus::WouldBlock) };
        let bytes = pending.bytes;
        self.pending = None;
        self.received(bytes, fds)
    }

    /// Records that bytes have arrived with these descriptors.
    fn received(&mut self, bytes: usize, fds: Vec<OwnedFd>) -> Result<ReadStatus, ConnectionLost> {
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

    /// Returns whether no message has arrived or was sent in part.
    pub fn is_between(&self) -> bool {
        !self.has_partial_message() && !self.has_unsent() && self.fds.is_empty()
    }

    /// Returns the socket for whoever goes on with the connection. What the peer has sent and nobody has received stays in it.
    /// `None`, and the peer is hung up on, if a message has arrived in part or was not sent completely.
    pub fn into_socket(mut self) -> Option<OwnedFd> {
        let socket = self.is_between().then(|| self.socket.try_clone().ok()).flatten();
        self.passed_on = socket.is_some();
        socket
    }

    /// Returns whether part of a message remains to be sent.
    pub fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Sends as much of the unsent message as the socket takes.
    pub fn flush(&mut self) -> Result<(), ConnectionLost> {
        while let Some(Unsent { bytes, fds, sent }) = &mut self.unsent {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match fd_receiver::send_fds(self.socket.as_fd(), &bytes[*sent..], &borrowed) {
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

impl Drop for Stream {
    /// Hangs up. What the peer has sent and nobody has received is dropped with the socket, and may take long: a
    /// socket with SO_LINGER, or much memory.
    fn drop(&mut self) {
        self.close_kept();
        self.fds.drain(..).for_each(|(_, fd)| close_memory(fd));
        let unread = !self.passed_on
            && recv(&self.socket, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)
                .is_ok_and(|(bytes, _)| bytes > 0);
        if unread && let Ok(socket) = self.socket.try_clone() {
            let _ = shutdown(&self.socket, Shutdown::Both);
            drop_elsewhere(socket);
        }
    }
}
