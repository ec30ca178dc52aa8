//! An open file of `/dev/netmap`.

use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

use netmap::client::{Client, Error};
use netmap::protocol::{Reply, Request};
use netmap::request::Register;
use rustix::io::Errno;

use crate::registered::RegisteredPort;
use crate::start;

/// An open file of `/dev/netmap`. The registration ends when the last reference is dropped.
pub struct Open {
    /// The connection, until it becomes the port's.
    client: Mutex<Option<Client>>,
    port: OnceLock<RegisteredPort>,
}

/// Prints a line to standard error in one write, as others may write at the same time.
fn log_error(why: &str) {
    let _ = std::io::stderr().write_all(format!("ringpass-netmap: {why}\n").as_bytes());
}

/// Logs an error for the user, and returns the error number for the program.
fn to_errno(error: Error) -> Errno {
    match error {
        Error::Refused { errno, why } => {
            log_error(&why);
            errno
        }
        Error::NoServer(_) | Error::ConnectionLost(_) | Error::Os(_) => {
            log_error(&error.to_string());
            Errno::NXIO
        }
    }
}

impl Open {
    /// Connects to the serving process.
    pub fn new() -> Result<Self, Errno> {
        let client = start::connect().map_err(to_errno)?;
        Ok(Self { client: Mutex::new(Some(client)), port: OnceLock::new() })
    }

    /// Creates one without a connection and a port.
    #[cfg(test)]
    pub fn disconnected() -> Self {
        Self { client: Mutex::new(None), port: OnceLock::new() }
    }

    /// The port, if one was registered.
    #[inline]
    pub fn port(&self) -> Option<&RegisteredPort> {
        self.port.get()
    }

    /// Registers a port. Returns the registration as granted.
    pub fn register(&self, name: &str, asked: &Register) -> Result<Register, Errno> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if self.port.get().is_some() {
            return Err(Errno::BUSY);
        }
        // A refused registration has used up the connection, and the program may try again.
        let connected = match client.take() {
            Some(client) => client,
            None => start::connect().map_err(to_errno)?,
        };
        let port = connected.register(name, asked).map_err(to_errno)?;
        let registered = self.port.get_or_init(|| RegisteredPort::new(port));
        Ok(registered.port().granted().clone())
    }

    /// Sends a request that is not part of the registration, and returns the reply.
    pub fn ask(&self, request: &Request) -> Result<Reply, Errno> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connected = match client.take() {
            Some(client) => client,
            None => start::connect().map_err(to_errno)?,
        };
        let reply = connected.ask(request);
        if self.port.get().is_none() && !matches!(reply, Err(Error::ConnectionLost(_))) {
            *client = Some(connected);
        }
        match reply {
            Ok((reply, _)) => Ok(reply),
            // Not logged: programs make such requests to find out what exists.
            Err(Error::Refused { errno, .. }) => Err(errno),
            Err(error) => Err(to_errno(error)),
        }
    }
}
