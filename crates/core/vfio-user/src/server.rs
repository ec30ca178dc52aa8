//! A server, which serves one client at a time.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use ringpass_ipc::{AcceptWait, ConnectionLost, Listener, SLOW_PEER_PAUSE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Device, Ended, Session};

/// Something that has happened at a server.
#[derive(Debug)]
pub enum Event {
    /// A client has connected.
    Connected,
    /// A client was rejected because another one is connected.
    Busy,
    /// A command of the client was refused. The session continues.
    Refused(String),
    /// The client's session has ended, and the device was reset.
    Ended(Ended),
    /// A client could not be accepted.
    Failed(io::Error),
}

/// Serves a device to one client at a time.
pub struct Server<D> {
    listener: Listener,
    session: Option<Session>,
    /// The device that is served.
    pub device: D,
}

impl<D: Device> Server<D> {
    /// Creates a server without a client.
    pub fn new(listener: Listener, device: D) -> Self {
        Self { listener, session: None, device }
    }

    /// Accepts a client and handles messages, without blocking. Returns the number of messages handled. Events
    /// are passed to `report`.
    pub fn poll_once(&mut self, report: &mut dyn FnMut(Event)) -> usize {
        self.accept_client(report);
        self.serve(report)
    }

    /// Accepts the next client, or rejects it if another one is connected.
    pub fn accept_client(&mut self, report: &mut dyn FnMut(Event)) {
        let Some(socket) = self.listener.accept(|_, error| report(Event::Failed(error))) else { return };
        self.reap_closed_session(report);
        if self.session.is_some() {
            return report(Event::Busy);
        }
        self.session = Some(Session::new(socket));
        report(Event::Connected);
    }

    /// Ends the session of a client that has disconnected but whose messages were not read to the end yet, so
    /// that the next client is accepted at once.
    fn reap_closed_session(&mut self, report: &mut dyn FnMut(Event)) {
        let gone = self.session.as_ref().is_some_and(|session| {
            let mut fds = [PollFd::from_borrowed_fd(session.socket(), PollFlags::empty())];
            poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::HUP)
        });
        if gone {
            self.serve(report);
        }
        if gone && self.connected() {
            self.end();
            report(Event::Ended(Ended::Lost(ConnectionLost::Closed)));
        }
    }

    /// Handles the client's messages, without blocking. Returns the number of messages handled.
    pub fn serve(&mut self, report: &mut dyn FnMut(Event)) -> usize {
        let Some(session) = &mut self.session else { return 0 };
        let result = session.handle(&mut self.device);
        if let Some(refusal) = session.take_refusal() {
            report(Event::Refused(refusal));
        }
        result.unwrap_or_else(|ended| {
            self.end();
            if matches!(ended, Ended::SlowEventfd) {
                self.listener.pause(SLOW_PEER_PAUSE);
            }
            report(Event::Ended(ended));
            0
        })
    }

    /// Ends the session, if there is one.
    pub fn end(&mut self) {
        if let Some(session) = self.session.take() {
            session.end(&mut self.device);
        }
    }

    /// Returns whether a client is connected.
    pub fn connected(&self) -> bool {
        self.session.is_some()
    }

    /// Returns the descriptors to wait on before the next turn, and the events to wait for. The listener is
    /// left out while no client can be accepted, so wait for a second at most.
    pub fn wait_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let session = self.session.as_ref().map(|session| {
            let (fd, flags) = session.wait_on();
            (fd, flags)
        });
        let listener = match self.listener.wait_on() {
            AcceptWait::Readable(fd) => Some((fd, PollFlags::IN)),
            AcceptWait::Pause(_) => None,
        };
        listener.into_iter().chain(session)
    }
}

impl<D> Server<D> {
    /// Path of the socket.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }
}
