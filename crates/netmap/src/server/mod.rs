//! The serving process: programs come over a unix socket, register ports, and get the memory by descriptor. A connection has
//! one registration, as one open of `/dev/netmap`; when it ends, for whatever reason, all that it had comes back.

mod budget;
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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ringpass_peer::{Credentials, Listener, Waiting};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde_json::Value;

use ports::Ports;
use session::Session;
use users::Users;

pub use memories::{COMMON, EXCHANGED};
pub use native::Native;
pub use refusal::Refusal;
pub use switches::{NoSwitches, ServedPort, Switches};

use crate::protocol::Reply;
use crate::{Pools, Region};

/// See the module. Belongs to one thread; nothing but [`turn`](Self::turn) waits.
pub struct Server {
    listener: Listener,
    sessions: Vec<Session>,
    ports: Ports,
    /// Readable when memory was made for a program.
    made: Arc<OwnedFd>,
}

/// Programs at a time.
const MOST_SESSIONS: usize = 4000;
/// Those of one user.
const MOST_OF_A_USER: usize = 2000;

impl Server {
    /// A server whose common memory has these pools, and whose VALE ports are made by `switches`.
    pub fn new(listener: Listener, common: Pools, switches: Box<dyn Switches>) -> Result<Self, Refusal> {
        let made = Arc::new(eventfd()?);
        Ok(Self { listener, sessions: Vec::new(), ports: Ports::new(common, switches)?, made })
    }

    /// Ports with memory of their own may have so many bytes together, of which one program may take a quarter. Without this, 1 GiB.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.ports.budget.set_total(bytes);
    }

    /// Ports of the machine that exchange buffers have this memory, which has their [pool](Region::exchange). Before the first of
    /// them is [served](Self::serve).
    pub fn exchange(&mut self, region: Region) {
        self.ports.exchange(region);
    }

    /// Waits for programs, for at most `limit`, and does what they ask for.
    pub fn turn(&mut self, limit: Duration) -> io::Result<()> {
        let sessions = self.sessions.iter().map(|session| session.wait_on());
        let mut fds = vec![PollFd::new(&*self.made, PollFlags::IN)];
        let mut until = limit;
        for (fd, flags, limit) in sessions {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
            until = limit.map_or(until, |limit| until.min(limit));
        }
        // The last one.
        match self.listener.wait_on() {
            Waiting::Readable(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            Waiting::Pause(left) => until = until.min(left),
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
        let mut ended = Vec::new();
        for (number, (session, events)) in self.sessions.iter_mut().zip(&events[1..]).enumerate() {
            // Of the others some may owe something for too long.
            let due = !events.is_empty() || session.waits_for_memory() || session.owes();
            let hung_up = events.intersects(PollFlags::HUP | PollFlags::ERR);
            if due && !session.handle(&mut self.ports, &self.made, hung_up) {
                ended.push(number);
            }
        }
        for number in ended.into_iter().rev() {
            self.sessions.swap_remove(number).end(&mut self.ports);
        }
        self.welcome();
        Ok(())
    }

    fn welcome(&mut self) {
        let no_descriptor = |socket: BorrowedFd<'_>, error: io::Error| {
            let why = format!(
                "the serving process has no file descriptor left ({error}); end some programs, or start it with a higher limit (ulimit -n)"
            );
            turn_away(socket, Refusal::new(Errno::MFILE, why));
        };
        let Some(socket) = self.listener.accept(no_descriptor) else { return };
        // A socket without credentials is one that is gone already.
        let Ok(program) = Credentials::of_peer(&socket) else { return };
        let own = self.sessions.iter().filter(|session| session.user() == program.uid).count();
        if self.sessions.len() >= MOST_SESSIONS || own >= MOST_OF_A_USER {
            let why =
                format!("{MOST_OF_A_USER} programs of a user, or {MOST_SESSIONS} in all, are there already; end some");
            return turn_away(socket.as_fd(), Refusal::new(Errno::NOSPC, why));
        }
        self.sessions.push(Session::new(socket, program));
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

/// Says why to a program that is not served. It has just connected, so the answer fits.
fn turn_away(socket: BorrowedFd<'_>, Refusal { errno, why }: Refusal) {
    let bytes = Reply::text(Some(errno), why).bytes();
    let _ = rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

fn eventfd() -> Result<OwnedFd, Refusal> {
    let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.map_err(|errno| Refusal::new(Errno::MFILE, format!("an eventfd of the serving process: {errno}")))
}
