//! The other side: who asks.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ringpass_ipc::{Connecting, connect, send_descriptors};
use ringpass_port::{Address, Error, PortConfig};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::{Greeting, PATIENCE, PROTOCOL, Request, Status};
use crate::pass_on::open_for;

/// Longest line of a program that is read, in bytes: a switch with 16 million stations has more of them than anybody reads.
const MAX_ANSWER: u64 = 256 << 20;

/// Time for a change: a port may wait for who serves it.
const CHANGE: Duration = Duration::from_secs(60);

/// A connection to a program.
///
/// ```no_run
/// use ringpass::control::Client;
///
/// let mut client = Client::connect("/run/ringpass/control".as_ref())?;
/// for port in client.status()?.ports {
///     println!("{}: {} packets received", port.name, port.stats.rx_packets);
/// }
/// # Ok::<(), ringpass::Error>(())
/// ```
pub struct Client {
    stream: BufReader<UnixStream>,
    greeting: Greeting,
    next: u64,
    /// Events that came before an answer.
    events: Vec<Value>,
    /// Bytes of a line whose rest has not come yet.
    partial: Vec<u8>,
    place: String,
}

impl Client {
    /// Connects to a program, and waits up to [`PATIENCE`] for its greeting.
    ///
    /// # Errors
    /// Nobody serves the socket, or not this client, or in another version of the protocol.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let place = path.display().to_string();
        let stream = match connect(path).map_err(|error| Error::Fault(error.to_string()))? {
            Connecting::Connected(socket) => UnixStream::from(socket),
            Connecting::Queued => {
                return Err(Error::Busy(format!("{place}: the program lets nobody in; does it still run?")));
            }
            Connecting::Refused(Errno::ACCESS) => {
                return Err(Error::Permission(format!(
                    "{place}: you may not connect; take the group of the socket, or be root"
                )));
            }
            Connecting::Refused(_) => {
                return Err(Error::NotFound(format!(
                    "{place}: no program is controlled there; name its socket with --socket, or start it with --control {place}"
                )));
            }
        };
        stream.set_nonblocking(false).map_err(|error| Error::os(place.clone(), error))?;
        let mut client = Self {
            stream: BufReader::new(stream),
            greeting: Greeting { protocol: 0, program: String::new(), version: String::new(), changes: false },
            next: 1,
            events: Vec::new(),
            partial: Vec::new(),
            place,
        };
        let first = client.line(PATIENCE)?.ok_or_else(|| client.silent())?;
        if let Some(why) = first["error"].as_str() {
            return Err(Error::Busy(format!("{}: {why}", client.place)));
        }
        match serde_json::from_value::<Greeting>(first) {
            Ok(greeting) if greeting.protocol == PROTOCOL => client.greeting = greeting,
            Ok(Greeting { version, .. }) => {
                return Err(Error::Unsupported(format!(
                    "{}: the program has version {version}; ask with the same one",
                    client.place
                )));
            }
            Err(_) => {
                return Err(Error::Fault(format!("{}: this is not the control socket of Ringpass", client.place)));
            }
        }
        Ok(client)
    }

    /// Returns what the program has said of itself.
    pub fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// Asks for something and waits up to [`PATIENCE`] for the answer, or a minute if it is a change.
    ///
    /// # Errors
    /// The program's refusal; it is gone or does not answer.
    pub fn request(&mut self, request: &Request) -> Result<Value, Error> {
        self.request_with(request, &[])
    }

    /// Asks for something with descriptors that go along.
    ///
    /// # Errors
    /// Those of [`request`](Self::request).
    pub fn request_with(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Value, Error> {
        let id = self.next;
        self.next += 1;
        let mut object = serde_json::to_value(request).map_err(|error| Error::Fault(error.to_string()))?;
        object["id"] = json!(id);
        let text = format!("{object}\n");
        let mut rest = text.as_bytes();
        if !descriptors.is_empty() {
            // They go with the first bytes, of which the socket takes some at least.
            let sent = send_descriptors(self.stream.get_ref(), rest, descriptors).map_err(|error| self.gone(error))?;
            rest = &rest[sent..];
        }
        self.stream.get_mut().write_all(rest).map_err(|error| self.gone(error))?;
        let limit = if request.is_change() { CHANGE } else { PATIENCE };
        loop {
            let mut line = self.line(limit)?.ok_or_else(|| self.silent())?;
            if line.get("event").is_some() {
                self.events.push(line);
            } else if let Some(why) = line["error"].as_str() {
                return Err(Error::Config(why.to_owned()));
            } else if line["id"] == id {
                return Ok(line["ok"].take());
            }
        }
    }

    /// Asks for the program's status.
    ///
    /// # Errors
    /// Those of [`request`](Self::request).
    pub fn status(&mut self) -> Result<Status, Error> {
        let status = self.request(&Request::Status)?;
        serde_json::from_value(status).map_err(|error| Error::Fault(format!("{}: {error}", self.place)))
    }

    /// Opens a port and adds it to a switch of the program, which is in its sandbox and opens nothing itself. `port` has the keys of `[[switch.port]]`
    /// in the configuration file; `address` must be among them. The port is opened in this process's network namespace, with the program's number of queues, MTU and
    /// offloads. One that is busy is tried again for two seconds, as it may just have been removed.
    ///
    /// # Errors
    /// The port cannot be opened, or not be passed on; those of [`request`](Self::request).
    pub fn add(&mut self, switch: &str, port: Value) -> Result<(), Error> {
        const BUSY: Duration = Duration::from_secs(2);
        let missing = || Error::Config("the port has no key 'address'".into());
        let address: Address = port["address"].as_str().ok_or_else(missing)?.parse()?;
        let Status { queues, mtu, offloads, .. } = self.status()?;
        let offloads = offloads.parse().map_err(Error::Fault)?;
        let config = PortConfig { queues, mtu, offloads, ..PortConfig::default() };
        let start = Instant::now();
        let descriptors = loop {
            match open_for(&address, &config) {
                Err(Error::Busy(_)) if start.elapsed() < BUSY => std::thread::sleep(Duration::from_millis(5)),
                opened => break opened?,
            }
        };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        self.request_with(&Request::Add { switch: switch.into(), port }, &descriptors).map(drop)
    }

    /// Waits for the next event, for this long at most. [`Request::Events`] asks for them.
    ///
    /// # Errors
    /// The program is gone.
    pub fn event(&mut self, limit: Duration) -> Result<Option<Value>, Error> {
        if !self.events.is_empty() {
            return Ok(Some(self.events.remove(0)));
        }
        self.line(limit)
    }

    /// Reads a line; `None` if it has not come within this time.
    fn line(&mut self, limit: Duration) -> Result<Option<Value>, Error> {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
            self.stream.get_ref().set_read_timeout(Some(left)).map_err(|error| self.gone(error))?;
            let room = MAX_ANSWER.saturating_sub(self.partial.len() as u64);
            match self.stream.by_ref().take(room).read_until(b'\n', &mut self.partial) {
                Ok(_) if self.partial.ends_with(b"\n") => {
                    let line = std::mem::take(&mut self.partial);
                    let value = serde_json::from_slice(&line);
                    return value.map(Some).map_err(|error| Error::Fault(format!("{}: {error}", self.place)));
                }
                Ok(_) => return Err(Error::Gone(format!("{}: the program has ended", self.place))),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if start.elapsed() >= limit {
                        return Ok(None);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
                Err(error) => return Err(self.gone(error)),
            }
        }
    }

    fn silent(&self) -> Error {
        Error::Gone(format!("{}: the program does not answer", self.place))
    }

    fn gone(&self, error: std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                Error::Gone(format!("{}: the program has ended", self.place))
            }
            _ => Error::os(self.place.clone(), error),
        }
    }
}
