//! An open file of `/dev/netmap`.

use std::sync::{Mutex, OnceLock, PoisonError};

use netmap::client::{Client, Error, Port};
use netmap::protocol::{Reply, Request};
use netmap::request::Register;
use rustix::io::Errno;

use crate::refusal::Refusal;
use crate::registered::RegisteredPort;
use crate::start;

/// An open file of `/dev/netmap`. The registration ends when the last reference is dropped.
pub struct Open {
    /// The connection, until it becomes the port's.
    client: Mutex<Option<Client>>,
    port: OnceLock<RegisteredPort>,
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
    /// Connects to the serving process.
    pub fn new() -> Result<Self, Errno> {
        let client = start::connect().map_err(|error| printed(error).errno)?;
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
        let mut port = RegisteredPort::new(self.connect_port(&mut client, name, asked, connected)?);
        prepare(&mut port)?;
        Ok(self.port.get_or_init(|| port).port().granted().clone())
    }

    fn connect_port(
        &self,
        client: &mut Option<Client>,
        name: &str,
        asked: &Register,
        prepare: impl FnOnce(&mut Client, &mut Register) -> Result<(), Refusal>,
    ) -> Result<Port, Refusal> {
        if self.port.get().is_some() {
            return Err(Refusal::new(Errno::BUSY, "this descriptor has a port already; open another one"));
        }
        // A refused registration has used up the connection, and the program may try again.
        let mut connected = match client.take() {
            Some(client) => client,
            None => start::connect().map_err(printed)?,
        };
        let mut asked = asked.clone();
        prepare(&mut connected, &mut asked)?;
        connected.register(name, &asked).map_err(printed)
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
