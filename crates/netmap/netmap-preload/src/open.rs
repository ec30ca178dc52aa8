//! An open file of `/dev/netmap`.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use netmap::client::{Client, Error, cookie, default_socket};
use netmap::protocol::{Reply, Request};
use netmap::request::Register;
use rustix::io::Errno;

use crate::refusal::Refusal;
use crate::registered::RegisteredPort;
use crate::start;

/// An open file of `/dev/netmap`: a connection to the serving process, whose socket is the program's descriptor. The registration
/// ends when the last duplicate of that is closed, in any process that has got one.
pub struct Open {
    /// The connection, until it becomes the port's.
    client: Mutex<Option<Client>>,
    port: OnceLock<RegisteredPort>,
    /// Number by which the kernel knows the socket.
    cookie: u64,
}

/// Prints an error for the user, and returns the refusal for the program.
fn printed(error: Error) -> Refusal {
    let errno = match error {
        Error::Refused { errno, .. } => errno,
        Error::NoServer(_) | Error::ConnectionLost(_) | Error::Os(_) => Errno::NXIO,
    };
    Refusal::printed(errno, &error.to_string())
}

impl Open {
    /// Connects to the serving process. Returns also the descriptor for the program, which is closed by `exec` if that is wanted.
    pub fn new(close_on_exec: bool) -> Result<(Self, OwnedFd), Errno> {
        let client = start::connect().map_err(|error| printed(error).errno)?;
        let duplicate = if close_on_exec { rustix::io::fcntl_dupfd_cloexec } else { duplicate_for_exec };
        let descriptor = duplicate(client.socket(), 0)?;
        let cookie = cookie(client.socket()).map_err(|error| printed(error).errno)?;
        Ok((Self { client: Mutex::new(Some(client)), port: OnceLock::new(), cookie }, descriptor))
    }

    /// Takes the connection to the serving process, with this cookie, behind a descriptor that this process has got from another one, or
    /// kept over `exec`; `None` if the server is gone, or does not give it to this user.
    pub fn adopt(descriptor: BorrowedFd<'_>, cookie: u64) -> Option<Self> {
        let own = rustix::io::fcntl_dupfd_cloexec(descriptor, 0).ok()?;
        let (client, granted) = Client::adopt(&default_socket().ok()?, own).inspect_err(log).ok()?;
        let open = Self { client: Mutex::new(None), port: OnceLock::new(), cookie };
        match granted {
            None => *open.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client),
            Some(granted) => {
                let port = client.into_port(granted).inspect_err(log).ok()?;
                open.port.get_or_init(|| RegisteredPort::new(port));
            }
        }
        Some(open)
    }

    /// Creates one without a connection and a port.
    #[cfg(test)]
    pub fn disconnected() -> Self {
        Self { client: Mutex::new(None), port: OnceLock::new(), cookie: 0 }
    }

    /// Number by which the kernel knows the connection's socket, in all processes.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The port, if one was registered.
    #[inline]
    pub fn port(&self) -> Option<&RegisteredPort> {
        self.port.get()
    }

    /// Registers a port: `connected` may change the registration before, and `prepare` prepares the port; if that fails, the
    /// registration ends at once. Returns the registration as granted.
    pub fn register(
        &self,
        name: &str,
        asked: &Register,
        connected: impl FnOnce(&mut Client, &mut Register) -> Result<(), Refusal>,
        prepare: impl FnOnce(&mut RegisteredPort) -> Result<(), Refusal>,
    ) -> Result<Register, Refusal> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if self.port.get().is_some() {
            return Err(Refusal::new(Errno::BUSY, "this descriptor has a port already; open another one"));
        }
        let mut connection = match client.take() {
            Some(connection) => connection,
            None => start::connect().map_err(printed)?,
        };
        let mut asked = asked.clone();
        let granted = match connected(&mut connection, &mut asked) {
            Ok(()) => connection.try_register(name, &asked).map_err(printed),
            Err(refusal) => Err(refusal),
        };
        // The program may try again with the same connection, which is its descriptor.
        let granted = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                *client = Some(connection);
                return Err(refusal);
            }
        };
        let mut port = RegisteredPort::new(connection.into_port(granted).map_err(printed)?);
        if let Err(refusal) = prepare(&mut port) {
            *client = port.unregister().ok();
            return Err(refusal);
        }
        Ok(self.port.get_or_init(|| port).port().granted().clone())
    }

    /// Sends a request that is not part of the registration, and returns the reply.
    pub fn ask(&self, request: &Request) -> Result<Reply, Refusal> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connected = match client.take() {
            Some(client) => client,
            None => start::connect().map_err(printed)?,
        };
        let reply = connected.ask(request);
        if self.port.get().is_none() && !matches!(reply, Err(Error::ConnectionLost(_))) {
            *client = Some(connected);
        }
        match reply {
            Ok((reply, _)) => Ok(reply),
            Err(Error::Refused { errno, why }) => Err(Refusal::new(errno, why)),
            Err(error) => Err(printed(error)),
        }
    }
}

impl Drop for Open {
    /// Ends the registration, unless another process has a duplicate of the descriptor. As in netmap, it has ended when `close`
    /// returns.
    fn drop(&mut self) {
        if let Some(port) = self.port.take() {
            drop(port);
            start::settle();
        }
    }
}

/// Prints an error, if the user asks for it.
fn log(error: &Error) {
    Refusal::new(Errno::NXIO, error).log();
}

fn duplicate_for_exec(socket: BorrowedFd<'_>, least: i32) -> Result<OwnedFd, Errno> {
    let duplicate = rustix::io::fcntl_dupfd_cloexec(socket, least)?;
    rustix::io::fcntl_setfd(&duplicate, rustix::io::FdFlags::empty())?;
    Ok(duplicate)
}
