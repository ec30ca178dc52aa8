//! One open of `/dev/netmap`.

use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

use netmap::client::{Client, Error};
use netmap::protocol::{Reply, Request};
use netmap::request::Register;
use rustix::io::Errno;

use crate::registered::Registered;
use crate::start;

/// See the module. It ends when nobody has it any more, and with it the registration.
pub struct Open {
    /// Becomes the port's.
    client: Mutex<Option<Client>>,
    port: OnceLock<Registered>,
}

/// In one piece, as others may write at the same time.
fn tell_the_user(why: &str) {
    let _ = std::io::stderr().write_all(format!("ringpass-netmap: {why}\n").as_bytes());
}

/// What a program is told, and what its user is.
fn say(error: Error) -> Errno {
    match error {
        Error::Refused { errno, why } => {
            tell_the_user(&why);
            errno
        }
        Error::Nobody(_) | Error::Lost(_) | Error::Os(_) => {
            tell_the_user(&error.to_string());
            Errno::NXIO
        }
    }
}

impl Open {
    /// Connects to the process that serves.
    pub fn new() -> Result<Self, Errno> {
        let client = start::connect().map_err(say)?;
        Ok(Self { client: Mutex::new(Some(client)), port: OnceLock::new() })
    }

    /// One without a connection, which has no port.
    #[cfg(test)]
    pub fn nowhere() -> Self {
        Self { client: Mutex::new(None), port: OnceLock::new() }
    }

    /// The port, if one was registered.
    #[inline]
    pub fn port(&self) -> Option<&Registered> {
        self.port.get()
    }

    /// Registers a port. Returns what was granted.
    pub fn register(&self, name: &str, asked: &Register) -> Result<Register, Errno> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if self.port.get().is_some() {
            return Err(Errno::BUSY);
        }
        // Who was refused may ask again.
        let connected = match client.take() {
            Some(client) => client,
            None => start::connect().map_err(say)?,
        };
        let port = connected.register(name, asked).map_err(say)?;
        let registered = self.port.get_or_init(|| Registered::new(port));
        Ok(registered.port().granted().clone())
    }

    /// Asks for something else, which is no part of the registration.
    pub fn ask(&self, request: &Request) -> Result<Reply, Errno> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connected = match client.take() {
            Some(client) => client,
            None => start::connect().map_err(say)?,
        };
        let reply = connected.ask(request);
        if self.port.get().is_none() && !matches!(reply, Err(Error::Lost(_))) {
            *client = Some(connected);
        }
        match reply {
            Ok((reply, _)) => Ok(reply),
            // Programs ask whether there is something.
            Err(Error::Refused { errno, .. }) => Err(errno),
            Err(error) => Err(say(error)),
        }
    }
}
