//! A server: one client after the other.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use ringpass_peer::{Listener, Waiting};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Device, Ended, Session};

/// What has happened at a server.
#[derive(Debug)]
pub enum Event {
    /// A client has come.
    Connected,
    /// A client was turned away: there is one already.
    Busy,
    /// The client did something that was refused; the session goes on.
    Refused(String),
    /// The client's session has ended; the device is as after power-on.
    Ended(Ended),
    /// A client could not be let in.
    Failed(io::Error),
}

/// Serves a device to one client after the other.
pub struct Server<D> {
    listener: Listener,
    session: Option<Session>,
    /// What is served.
    pub device: D,
}

impl<D: Device> Server<D> {
    /// A server that waits for its first client.
    pub fn new(listener: Listener, device: D) -> Self {
        Self { listener, session: None, device }
    }

    /// Does what there is to do, without waiting. Returns how many messages were handled. What happened is handed to
    /// `report`.
    pub fn turn(&mut self, report: &mut dyn FnMut(Event)) -> usize {
        self.welcome(report);
        self.serve(report)
    }

    /// Lets the next client in, or turns it away.
    pub fn welcome(&mut self, report: &mut dyn FnMut(Event)) {
        let Some(socket) = self.listener.accept(|_, error| report(Event::Failed(error))) else { return };
        self.make_room(report);
        if self.session.is_some() {
            return report(Event::Busy);
        }
        self.session = Some(Session::new(socket));
        report(Event::Connected);
    }

    /// Ends the session of a client that has gone, of which nobody has taken notice yet: the next one may have it at once.
    fn make_room(&mut self, report: &mut dyn FnMut(Event)) {
        let gone = self.session.as_ref().is_some_and(|session| {
            let mut fds = [PollFd::from_borrowed_fd(session.wait_on().0, PollFlags::empty())];
            poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::HUP)
        });
        if gone {
            self.serve(report);
        }
        if gone && self.connected() {
            self.end();
            report(Event::Ended(Ended::Closed));
        }
    }

    /// Handles the client's messages.
    pub fn serve(&mut self, report: &mut dyn FnMut(Event)) -> usize {
        let Some(session) = &mut self.session else { return 0 };
        let result = session.handle(&mut self.device);
        if let Some(refusal) = session.take_refusal() {
            report(Event::Refused(refusal));
        }
        result.unwrap_or_else(|ended| {
            self.end();
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

    /// Whether a client is there.
    pub fn connected(&self) -> bool {
        self.session.is_some()
    }

    /// What to wait on before the next turn, and for what. The listener is left out while nobody can be let in: wait for a second at
    /// most.
    pub fn wait_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let session = self.session.as_ref().map(|session| {
            let (fd, flags, _) = session.wait_on();
            (fd, flags)
        });
        let listener = match self.listener.wait_on() {
            Waiting::Readable(fd) => Some((fd, PollFlags::IN)),
            Waiting::Pause(_) => None,
        };
        listener.into_iter().chain(session)
    }
}

impl<D> Server<D> {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }
}
