//! The serving process. Programs connect to a unix socket, register ports, and get the memory by descriptor.
//!
//! A connection has one registration, like one open file of `/dev/netmap`. When it ends, for whatever reason,
//! everything that it had is freed.

mod budget;
mod handover;
mod info;
mod left;
mod memories;
mod native;
mod open_port;
mod pipes;
mod ports;
mod request_error;
mod session;
mod switches;
mod users;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass_ipc::{AcceptWait, Credentials, Listener, SLOW_PEER_PAUSE};
use ringpass_netmap::protocol::Reply;
use ringpass_netmap::{Pools, Region};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde_json::Value;

use ports::Ports;
use session::{Session, Wait};
use users::{User, Users};

pub use budget::{Budget, Reservation};
pub use memories::{COMMON_MEMORY, ZERO_COPY_MEMORY};
pub use native::Native;
pub use request_error::RequestError;
pub use switches::{ServedPort, ServedRings, SwitchPlace, Switches, Watched};

/// Users who may control the ports of all others, besides root.
#[derive(Clone, Debug, Default)]
pub struct Administrators {
    /// User ids.
    pub users: Vec<u32>,
    /// Group id, which counts for programs whose effective group it is.
    pub group: Option<u32>,
}

/// The server of netmap ports. Belongs to one thread; only [`poll_once`](Self::poll_once) waits.
pub struct Server {
    listener: Listener,
    sessions: Vec<Session>,
    ports: Ports,
    /// Readable when memory for a program was allocated.
    made: Arc<OwnedFd>,
    /// Users with a program whose eventfd was slow, and until when they are not accepted.
    paused: Vec<(u32, Instant)>,
}

/// Largest number of connected programs.
const MAX_SESSIONS: usize = 4000;
/// Largest number of connected programs of one user.
const MAX_SESSIONS_PER_USER: usize = 2000;

impl Server {
    /// Creates a server whose common memory has these pools, and whose VALE ports `switches` opens.
    pub fn new(listener: Listener, common: Pools, switches: Box<dyn Switches>) -> Result<Self, RequestError> {
        let made = Arc::new(eventfd()?);
        Ok(Self { listener, sessions: Vec::new(), ports: Ports::new(common, switches)?, made, paused: Vec::new() })
    }

    /// Limits the memory of all ports with private memory to this budget, of which one program may use a quarter.
    /// The default is one of 1 GiB. To be called before the first port is opened.
    pub fn limit_memory(&mut self, budget: Budget) {
        self.ports.budget = budget;
    }

    /// Lets programs of these users, besides those of root, control the persistent and native ports of all users. By default
    /// a user controls the persistent ports that it has created.
    pub fn set_administrators(&mut self, administrators: Administrators) {
        self.ports.administrators = administrators;
    }

    /// Sets the memory of native ports that exchange buffers, which contains their [pool](Region::exchange). To
    /// be called before the first such port is [served](Self::serve).
    pub fn exchange(&mut self, region: Region) {
        self.ports.exchange(region);
    }

    /// Waits for requests, for at most `limit`, and executes them.
    pub fn poll_once(&mut self, limit: Duration) -> io::Result<()> {
        let sessions = self.sessions.iter().map(|session| session.wait_on());
        let mut fds = vec![PollFd::new(&*self.made, PollFlags::IN)];
        let mut until = limit;
        for Wait { socket, events, limit } in sessions {
            fds.push(PollFd::from_borrowed_fd(socket, events));
            until = limit.map_or(until, |limit| until.min(limit));
        }
        // The listener is the last one.
        match self.listener.wait_on() {
            AcceptWait::Readable(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            AcceptWait::Pause(left) => until = until.min(left),
        }
        let until = Timespec::try_from(until).expect("a short time");
        match poll(&mut fds, Some(&until)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        if !events[0].is_empty() {
            #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
            let _ = rustix::io::read(&*self.made, &mut [0; 8]);
        }
        let mut events = events[1..=self.sessions.len()].to_vec();
        let gone = PollFlags::HUP | PollFlags::ERR;
        // First those that are gone: who has closed a port, and then makes a request by another connection, finds it closed.
        for only_gone in [true, false] {
            for number in (0..self.sessions.len()).rev() {
                if events[number].intersects(gone) == only_gone && !self.handle(number, events[number]) {
                    events.swap_remove(number);
                    self.sessions.swap_remove(number).end(&mut self.ports);
                }
            }
        }
        self.accept_client();
        Ok(())
    }

    /// Handles a session with these events of its socket. Returns whether it continues.
    fn handle(&mut self, number: usize, events: PollFlags) -> bool {
        let session = &mut self.sessions[number];
        if session.has_slow_eventfd() {
            self.paused.push((session.user(), Instant::now() + SLOW_PEER_PAUSE));
            return false;
        }
        let hung_up = events.intersects(PollFlags::HUP | PollFlags::ERR);
        // Sessions without an event may have missed a deadline.
        let due = !events.is_empty() || session.waits_for_memory() || session.is_overdue();
        !due || session.handle(&mut self.ports, &self.made, hung_up)
    }

    fn accept_client(&mut self) {
        let no_descriptor = |socket: BorrowedFd<'_>, error: io::Error| {
            let why = format!(
                "the serving process has no file descriptor left ({error}); end some programs, or start it with a higher limit (ulimit -n)"
            );
            reject(socket, RequestError::new(Errno::MFILE, why));
        };
        let Some(socket) = self.listener.accept(no_descriptor) else { return };
        // A socket without credentials has been closed already.
        let Ok(program) = Credentials::of_peer(&socket) else { return };
        self.paused.retain(|&(_, until)| Instant::now() < until);
        if self.paused.iter().any(|&(user, _)| user == program.uid) {
            let why = "an eventfd of this user takes more than 1 ms to be signalled; end the processes that wait for it, and try again in 10 s";
            return reject(socket.as_fd(), RequestError::new(Errno::BUSY, why));
        }
        let own = self.sessions.iter().filter(|session| session.user() == program.uid).count();
        if self.sessions.len() >= MAX_SESSIONS || own >= MAX_SESSIONS_PER_USER {
            let why = format!(
                "{MAX_SESSIONS_PER_USER} programs of a user, or {MAX_SESSIONS} in all, are there already; end some"
            );
            return reject(socket.as_fd(), RequestError::new(Errno::NOSPC, why));
        }
        self.sessions.push(Session::new(socket, program));
    }

    /// Serves a native port to programs by a name, such as `eth0`, from now on.
    pub fn serve(&mut self, name: &str, port: Box<dyn Native>) -> Result<(), RequestError> {
        self.ports.serve(name, port)
    }

    /// Removes native ports that are gone; to be called several times a second. Programs that have one are
    /// disconnected, as if the server had ended. Returns the removed ports, and why they are gone.
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

    /// Number of connected programs.
    pub fn programs(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether there are persistent ports, or native ports on a switch, which last without a program.
    pub fn has_lasting_ports(&self) -> bool {
        self.ports.has_lasting_ports()
    }

    /// Status of all ports, by name.
    pub fn status(&self) -> Value {
        self.ports.status()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        std::mem::take(&mut self.sessions).into_iter().for_each(|session| session.end(&mut self.ports));
    }
}

/// Sends the reason to a program that is not served. It has just connected, so the reply fits into the socket's
/// buffer.
fn reject(socket: BorrowedFd<'_>, RequestError { errno, why }: RequestError) {
    let bytes = Reply::text(Some(errno), why).bytes();
    let _ = rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

fn eventfd() -> Result<OwnedFd, RequestError> {
    let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.map_err(|errno| RequestError::new(Errno::MFILE, format!("an eventfd of the serving process: {errno}")))
}
