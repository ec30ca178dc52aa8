//! The serving process: programs come over a unix socket, register ports, and get the memory by descriptor. A connection has
//! one registration, as one open of `/dev/netmap`; when it ends, for whatever reason, all that it had comes back.

mod info;
mod memories;
mod native;
mod open_port;
mod pipes;
mod ports;
mod refusal;
mod session;
mod switches;
mod users;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ringpass_peer::Listener;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::Value;

use ports::Ports;
use session::Session;
use users::Users;

pub use memories::{COMMON, EXCHANGED};
pub use native::Native;
pub use refusal::Refusal;
pub use switches::{NoSwitches, ServedPort, Switches};

use crate::{Pools, Region};

/// See the module. Belongs to one thread; nothing but [`turn`](Self::turn) waits.
pub struct Server {
    listener: Listener,
    sessions: Vec<Session>,
    ports: Ports,
}

/// Programs at a time.
const MOST_SESSIONS: usize = 2000;

impl Server {
    /// A server whose common memory has these pools, and whose VALE ports are made by `switches`.
    pub fn new(listener: Listener, common: Pools, switches: Box<dyn Switches>) -> Result<Self, Refusal> {
        Ok(Self { listener, sessions: Vec::new(), ports: Ports::new(common, switches)? })
    }

    /// Ports of the machine that exchange buffers have this memory, which has their [pool](Region::exchange). Before the first of
    /// them is [served](Self::serve).
    pub fn exchange(&mut self, region: Region) {
        self.ports.exchange(region);
    }

    /// Waits for programs, for at most `limit`, and does what they ask for.
    pub fn turn(&mut self, limit: Duration) -> io::Result<()> {
        let listener = PollFd::new(&self.listener, PollFlags::IN);
        let sessions = self.sessions.iter().map(|session| session.wait_on());
        let mut fds = vec![listener];
        let mut until = limit;
        for (fd, flags, limit) in sessions {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
            until = limit.map_or(until, |limit| until.min(limit));
        }
        let until = Timespec::try_from(until).expect("a short time");
        match poll(&mut fds, Some(&until)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut ended = Vec::new();
        for (number, (session, ready)) in self.sessions.iter_mut().zip(&ready[1..]).enumerate() {
            // Of the others some may owe something for too long.
            if (*ready || session.owes()) && !session.handle(&mut self.ports) {
                ended.push(number);
            }
        }
        for number in ended.into_iter().rev() {
            self.sessions.swap_remove(number).end(&mut self.ports);
        }
        if ready[0] {
            self.welcome()?;
        }
        Ok(())
    }

    fn welcome(&mut self) -> io::Result<()> {
        if let Some(socket) = self.listener.accept()? {
            // Who comes when there are too many is let go at once.
            if self.sessions.len() < MOST_SESSIONS {
                self.sessions.push(Session::new(socket));
            }
        }
        Ok(())
    }

    /// Programs have this port of the machine by a name, as `eth0`, from now on.
    pub fn serve(&mut self, name: &str, port: Box<dyn Native>) -> Result<(), Refusal> {
        self.ports.serve(name, port)
    }

    /// To be called some times a second: ports of the machine that are gone go. To programs that have one it is as if the
    /// server had ended. Returns those ports, and why.
    pub fn tick(&mut self) -> Vec<(String, String)> {
        let gone = self.ports.gone();
        for (name, _) in &gone {
            for number in (0..self.sessions.len()).rev() {
                if self.sessions[number].has(name) {
                    self.sessions.swap_remove(number).end(&mut self.ports);
                }
            }
            self.ports.forget(name);
        }
        gone
    }

    /// Programs that are connected.
    pub fn programs(&self) -> usize {
        self.sessions.len()
    }

    /// What there is.
    pub fn status(&self) -> Value {
        self.ports.status()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        std::mem::take(&mut self.sessions).into_iter().for_each(|session| session.end(&mut self.ports));
    }
}

fn eventfd() -> Result<OwnedFd, Refusal> {
    let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.map_err(|errno| Refusal::new(Errno::MFILE, format!("an eventfd of the serving process: {errno}")))
}
