//! The client side of the protocol, for a driver in another process than the device.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use ringpass_ipc::{Connecting, ConnectionLost, ReadStatus, Stream, check_eventfd, check_interrupt, wait_ready};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::message::irq_set;
use crate::transport::{Message, message, stream};
use crate::version::{self, Limits};
use crate::{Access, DeviceInfo, Error, HEADER, Header, IoEvent, IrqInfo, Kind, MAX_FDS, MAX_TRANSFER};
use crate::{Refusal, RegionInfo, Request};

/// A connection to a server. No call takes longer than its time limit, whatever the server does, and a
/// [write](Self::write) normally does not wait at all. If a call fails for any other reason than a refusal, the
/// connection is over and all further calls fail at once.
pub struct Client {
    /// Posted messages that the socket had no room for. They are sent before any other message.
    unsent: Vec<u8>,
    /// Time since which the server has taken nothing from `unsent`; `None` if that is empty.
    unsent_since: Option<Instant>,
    stream: Stream,
    limit: Duration,
    limits: Limits,
    next_id: u16,
    /// Reason why the connection is over.
    lost: Option<String>,
}

const CLOSED: &str = "the server has closed the connection; it may be serving another client";

/// Body and descriptors of a reply.
type Reply = (Vec<u8>, Vec<OwnedFd>);

impl Client {
    /// Connects to the server at a path and negotiates the version. This call and each later one must finish
    /// within `limit`.
    pub fn connect(path: &Path, limit: Duration) -> Result<Self, Error> {
        let start = Instant::now();
        loop {
            let refused = match ringpass_ipc::connect(path)? {
                Connecting::Connected(socket) => return Self::from_socket(socket, limit),
                Connecting::Queued => Errno::AGAIN,
                Connecting::Refused(errno) => errno,
            };
            check_interrupt().map_err(|source| Error::Os { what: path.display().to_string(), source })?;
            if refused != Errno::AGAIN || start.elapsed() >= limit {
                let what = format!("{}: is a server running there?", path.display());
                return Err(Error::Os { what, source: refused.into() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Creates a client on a connected socket and negotiates the version; see [`connect`](Self::connect).
    pub fn from_socket(socket: OwnedFd, limit: Duration) -> Result<Self, Error> {
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|errno| Error::Os { what: "a client's socket".into(), source: errno.into() })?;
        let limits = Limits { fds: 1, transfer: MAX_TRANSFER };
        let (unsent, unsent_since) = Default::default();
        let stream = stream(socket);
        let mut client = Self { unsent, unsent_since, stream, limit, limits, next_id: 0, lost: None };
        let (reply, _) = client.transact("VERSION", 1, &version::proposal(), &[], Kind::Command)?;
        client.limits = client.check_reply(version::limits(&reply))?;
        Ok(client)
    }

    /// Returns the numbers of regions and of interrupt types.
    pub fn device_info(&mut self) -> Result<DeviceInfo, Error> {
        let (reply, _) = self.ask(&Request::DeviceInfo { argsz: 16 })?;
        self.check_reply(DeviceInfo::parse(&reply))
    }

    /// Returns the description of a region and the file to map it from, if it can be mapped.
    pub fn region_info(&mut self, index: u32) -> Result<(RegionInfo, Option<OwnedFd>), Error> {
        let (reply, fds) = self.ask(&Request::RegionInfo { argsz: MAX_TRANSFER as u32, index })?;
        Ok((self.check_reply(RegionInfo::parse(&reply))?, fds.into_iter().next()))
    }

    /// Returns the ioeventfds of a region, and their descriptors.
    pub fn region_io_events(&mut self, index: u32) -> Result<(Vec<IoEvent>, Vec<OwnedFd>), Error> {
        let (reply, fds) = self.ask(&Request::RegionIoFds { argsz: MAX_TRANSFER as u32, index })?;
        let checked = fds.iter().try_for_each(check_eventfd);
        self.check_reply(checked.map_err(|error| Refusal::invalid(error.to_string())))?;
        Ok((self.check_reply(IoEvent::parse_all(&reply))?, fds))
    }

    /// Returns the number of interrupts of a type.
    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Error> {
        let (reply, _) = self.ask(&Request::IrqInfo { argsz: 16, index })?;
        self.check_reply(IrqInfo::parse(&reply))
    }

    /// Reads `out.len()` bytes of a region.
    pub fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let count = out.len() as u32;
        let (reply, _) = self.ask(&Request::RegionRead { offset, region, count })?;
        let data = reply.get(16..).filter(|data| data.len() == out.len());
        let data = data.ok_or_else(|| Refusal::invalid("a read of another length than was asked for"));
        out.copy_from_slice(self.check_reply(data)?);
        Ok(())
    }

    /// Bytes of posted messages that may be unsent. A write that exceeds this waits for the server.
    const MAX_UNSENT: usize = 64 << 10;

    /// Writes to a region with a posted message: the server handles it before anything that is sent later, and
    /// does not reply. Does not wait for a slow or stopped server unless more than 64 KiB are unsent; messages
    /// that the socket has no room for are sent by a later call. If the server takes nothing within the time
    /// limit, the connection ends.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Error> {
        let request = Request::RegionWrite { offset, region, data };
        self.transact("REGION_WRITE", request.command() as u16, &request.to_bytes(), &[], Kind::Posted).map(drop)
    }

    /// Lets the device access `size` bytes of `file`, from `offset` on, at DMA address `address`.
    pub fn dma_map(
        &mut self,
        address: u64,
        size: u64,
        (file, offset): (BorrowedFd<'_>, u64),
        access: Access,
    ) -> Result<(), Error> {
        let flags = match access {
            Access::Read => 1,
            Access::ReadWrite => 3,
        };
        let request = Request::DmaMap { flags, offset, address, size };
        self.transact("DMA_MAP", request.command() as u16, &request.to_bytes(), &[file], Kind::Command).map(drop)
    }

    /// Removes all mappings in a range of DMA addresses.
    pub fn dma_unmap(&mut self, address: u64, size: u64) -> Result<(), Error> {
        self.ask(&Request::DmaUnmap { flags: 0, address, size }).map(drop)
    }

    /// Makes vectors 0 to `events.len() - 1` signal these eventfds.
    pub fn set_vectors(&mut self, index: u32, events: &[impl AsFd]) -> Result<(), Error> {
        let flags = irq_set::DATA_EVENTFD | irq_set::ACTION_TRIGGER;
        let mut start = 0;
        for events in events.chunks(self.limits.fds) {
            let fds: Vec<BorrowedFd<'_>> = events.iter().map(AsFd::as_fd).collect();
            let request = Request::SetIrqs { flags, index, start, count: fds.len() as u32 };
            self.transact("SET_IRQS", request.command() as u16, &request.to_bytes(), &fds, Kind::Command)?;
            start += fds.len() as u32;
        }
        Ok(())
    }

    /// Detaches all vectors of an interrupt type from their eventfds.
    pub fn clear_vectors(&mut self, index: u32) -> Result<(), Error> {
        let flags = irq_set::DATA_NONE | irq_set::ACTION_TRIGGER;
        self.ask(&Request::SetIrqs { flags, index, start: 0, count: 0 }).map(drop)
    }

    /// Resets the device.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.ask(&Request::Reset).map(drop)
    }

    /// Ends the connection, with a reason that later calls report.
    pub fn close(&mut self, why: &str) {
        self.fail(why.to_owned());
    }

    fn ask(&mut self, request: &Request<'_>) -> Result<Reply, Error> {
        let name = match request {
            Request::DmaUnmap { .. } => "DMA_UNMAP",
            Request::DeviceInfo { .. } => "DEVICE_GET_INFO",
            Request::RegionInfo { .. } => "DEVICE_GET_REGION_INFO",
            Request::RegionIoFds { .. } => "DEVICE_GET_REGION_IO_FDS",
            Request::IrqInfo { .. } => "DEVICE_GET_IRQ_INFO",
            Request::SetIrqs { .. } => "DEVICE_SET_IRQS",
            Request::RegionRead { .. } => "REGION_READ",
            Request::Reset => "DEVICE_RESET",
            _ => "a command",
        };
        self.transact(name, request.command() as u16, &request.to_bytes(), &[], Kind::Command)
    }

    /// Ends the connection if a reply is malformed.
    fn check_reply<T>(&mut self, parsed: Result<T, Refusal>) -> Result<T, Error> {
        parsed.map_err(|refusal| self.fail(format!("the server has sent {refusal}")))
    }

    fn fail(&mut self, why: String) -> Error {
        let _ = rustix::net::shutdown(self.stream.socket(), rustix::net::Shutdown::Both);
        Error::ConnectionLost(self.lost.insert(why).clone())
    }

    /// Sends a command and waits for its reply. For a posted command, returns an empty reply without waiting.
    fn transact(
        &mut self,
        name: &'static str,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        kind: Kind,
    ) -> Result<Reply, Error> {
        if let Some(why) = &self.lost {
            return Err(Error::ConnectionLost(why.clone()));
        }
        let deadline = Instant::now() + self.limit;
        self.next_id = self.next_id.wrapping_add(1);
        let id = self.next_id;
        let header = Header { id, command, size: (HEADER + body.len()) as u32, kind, error: 0 };
        let message = [&header.to_bytes(), body].concat();
        if kind == Kind::Posted {
            self.unsent.extend_from_slice(&message);
            let wait = self.unsent.len() > Self::MAX_UNSENT;
            return self.flush(wait.then_some(deadline)).map(|()| Reply::default()).map_err(|why| self.fail(why));
        }
        self.flush(Some(deadline)).map_err(|why| self.fail(why))?;
        self.send(&message, fds, deadline).map_err(|why| self.fail(why))?;
        let (header, reply) = self.receive(deadline).map_err(|why| self.fail(why))?;
        match header.kind {
            _ if (header.id, header.command) != (id, command) => {
                Err(self.fail("the server has answered something else than was asked".into()))
            }
            Kind::Reply => Ok(reply),
            Kind::Error => Err(Error::Refused { command: name, errno: Errno::from_raw_os_error(header.error as i32) }),
            Kind::Command | Kind::Posted => Err(self.fail("the server has sent a command".into())),
        }
    }

    /// Sends posted messages: all of them by the deadline or, without one, as many as the socket takes.
    fn flush(&mut self, deadline: Option<Instant>) -> Result<(), String> {
        let mut sent = 0;
        let result = loop {
            if sent == self.unsent.len() {
                break Ok(());
            }
            match rustix::net::send(self.stream.socket(), &self.unsent[sent..], SendFlags::NOSIGNAL) {
                Ok(more) => sent += more,
                Err(Errno::AGAIN) if deadline.is_none() => break Ok(()),
                Err(errno) => {
                    if let Err(why) = self.wait(errno, PollFlags::OUT, deadline.unwrap_or_else(Instant::now)) {
                        break Err(why);
                    }
                }
            }
        };
        self.unsent.drain(..sent);
        // Progress restarts the time limit.
        let since = self.unsent_since.filter(|_| sent == 0 && !self.unsent.is_empty());
        self.unsent_since = since.or_else(|| (!self.unsent.is_empty()).then(Instant::now));
        match self.unsent_since {
            Some(since) if result.is_ok() && since.elapsed() > self.limit => {
                Err(format!("the server has taken no message for {} s", self.limit.as_secs_f32()))
            }
            _ => result,
        }
    }

    fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), String> {
        let mut sent = 0;
        while sent < message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !fds.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(fds));
                assert!(fits, "at most {MAX_FDS} descriptors");
            }
            match sendmsg(self.stream.socket(), &[IoSlice::new(&message[sent..])], &mut control, SendFlags::NOSIGNAL) {
                Ok(more) => sent += more,
                Err(errno) => self.wait(errno, PollFlags::OUT, deadline)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, deadline: Instant) -> Result<(Header, Reply), String> {
        loop {
            match message(&mut self.stream) {
                Ok(Some(Message { header, body, fds })) => {
                    return Ok((header, (self.stream.bytes(body).to_vec(), fds)));
                }
                Ok(None) => {}
                Err(_) => return Err("the server has sent a header that cannot be".into()),
            }
            match self.stream.receive() {
                Ok(ReadStatus::Data) => {}
                Ok(ReadStatus::WouldBlock) => self.wait(Errno::AGAIN, PollFlags::IN, deadline)?,
                Err(ConnectionLost::Closed | ConnectionLost::Truncated) => return Err(CLOSED.into()),
                Err(lost) => return Err(lost.to_string()),
            }
        }
    }

    /// Waits until the socket is ready or the deadline has passed, if `errno` says that a call would have
    /// blocked.
    fn wait(&self, errno: Errno, flags: PollFlags, deadline: Instant) -> Result<(), String> {
        match errno {
            Errno::AGAIN => {}
            Errno::INTR => return Ok(()),
            Errno::PIPE | Errno::CONNRESET => return Err(CLOSED.into()),
            errno => return Err(format!("the connection failed: {errno}")),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("the server has not answered within {} s", self.limit.as_secs_f32()));
        }
        let fd = if flags == PollFlags::IN { self.stream.wait_on().0 } else { self.stream.socket() };
        wait_ready(fd, flags, left).map_err(|error| format!("the connection failed: {error}"))
    }
}
