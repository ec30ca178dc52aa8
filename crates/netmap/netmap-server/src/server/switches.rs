//! The server's interface to VALE switches.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringpass_ipc::{EventNotifier, WakeFd};
use ringpass_netmap::{Buffers, Kring, Offsets, Positions, Region};
use rustix::io::Errno;
use serde_json::Value;

use super::RequestError;
use crate::SwitchLinks;

/// The VALE switches. A switch is created with its first port and removed with its last.
pub trait Switches {
    /// Opens a port of a switch, `vale…`, that moves frames between the switch and these rings.
    fn open(&mut self, switch: &str, port: &str, rings: ServedRings) -> Result<Box<dyn ServedPort>, RequestError>;

    /// Opens a port that is on no switch: what programs send through these rings is dropped.
    fn open_alone(&mut self, port: &str, rings: ServedRings) -> Result<Box<dyn ServedPort>, RequestError>;

    /// Attaches a port of another kind to a switch: `vale…:ADDRESS`. Returns its number in the switch.
    fn attach(&mut self, name: &str) -> Result<u32, RequestError>;

    /// Attaches queues to a switch as a port, `vale…:…`, and with `host` others as the port `vale…:…^`. Returns the number of the
    /// first in the switch, and their other ends.
    fn connect(&mut self, name: &str, host: bool) -> Result<(u32, SwitchLinks), RequestError>;

    /// Detaches it from the switch. Returns the number that it had there.
    fn detach(&mut self, name: &str) -> Result<u32, RequestError>;

    /// Whether a text is the address of a port of another kind, whether or not it may be attached.
    fn is_address(&self, text: &str) -> bool;

    /// Returns the place of an open or attached port by its name, `vale…:…`.
    fn find(&self, name: &str) -> Option<SwitchPlace>;

    /// Returns the first port at or after a place, with its name.
    fn next(&self, from: SwitchPlace) -> Option<(SwitchPlace, String)>;

    /// Waits until frames that were taken from rings before are in others, for at most a second.
    fn settle(&mut self) {}

    /// Status of all switches.
    fn status(&self) -> Value;
}

/// Number of a switch, and of a port in it. A port keeps both as long as it is on the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwitchPlace {
    /// Number of the switch.
    pub switch: u16,
    /// Number of the port.
    pub port: u32,
}

/// No switches: a server with pipes and native ports only.
impl Switches for () {
    fn open(&mut self, switch: &str, _: &str, _: ServedRings) -> Result<Box<dyn ServedPort>, RequestError> {
        Err(RequestError::new(Errno::NXIO, format!("no switch {switch}")))
    }

    fn open_alone(&mut self, port: &str, _: ServedRings) -> Result<Box<dyn ServedPort>, RequestError> {
        Err(RequestError::new(Errno::NXIO, format!("no switch for {port}")))
    }

    fn attach(&mut self, name: &str) -> Result<u32, RequestError> {
        Err(RequestError::new(Errno::NXIO, format!("no switch for {name}")))
    }

    fn connect(&mut self, name: &str, _: bool) -> Result<(u32, SwitchLinks), RequestError> {
        Err(RequestError::new(Errno::NXIO, format!("no switch for {name}")))
    }

    fn detach(&mut self, name: &str) -> Result<u32, RequestError> {
        self.attach(name)
    }

    fn is_address(&self, _: &str) -> bool {
        false
    }

    fn find(&self, _: &str) -> Option<SwitchPlace> {
        None
    }

    fn next(&self, _: SwitchPlace) -> Option<(SwitchPlace, String)> {
        None
    }

    fn status(&self) -> Value {
        Value::Null
    }
}

/// Rings of a port to be served, in the order of their entries in the CSB.
pub struct ServedRings {
    /// The rings, Tx first.
    pub rings: Vec<Kring>,
    /// Buffers of their slots.
    pub buffers: Buffers,
    /// Eventfd by which programs wake the serving side.
    pub kick: Arc<WakeFd>,
    /// Set if the port begins [held](ServedPort::hold).
    pub held: bool,
}

impl ServedRings {
    /// Creates what programs wake the serving side by.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub fn new(rings: Vec<Kring>, buffers: Buffers) -> Result<Self, RequestError> {
        let failed = |error| RequestError::new(Errno::MFILE, format!("an eventfd to kick: {error}"));
        Ok(Self { rings, buffers, kick: Arc::new(WakeFd::new().map_err(failed)?), held: false })
    }
}

/// The served rings of a port, with a switch, a native port or a monitored port behind them. Dropping it ends
/// the port: nobody accesses its rings afterwards.
pub trait ServedPort {
    /// The eventfd by which programs wake the serving side.
    fn kick(&self) -> BorrowedFd<'_>;

    /// Adds a program, by the number of its registration, that wants to be woken for some rings: bit N of
    /// `entries` stands for entry N of the CSB. `call` wakes it.
    fn subscribe(&mut self, number: u64, entries: u64, call: EventNotifier);

    /// Removes a program that wanted to be woken.
    fn unsubscribe(&mut self, number: u64);

    /// Sets where frames begin in the buffers of each ring, by its entry in the CSB.
    fn set_offsets(&mut self, offsets: &dyn Fn(usize) -> Offsets);

    /// Leaves the frames that programs send where they are, or takes them again; what programs receive is not concerned.
    fn hold(&mut self, _held: bool) {}

    /// Ends the port, and returns the positions at which its rings are left, by their entries in the CSB. `None` if nobody can go on with
    /// them.
    fn leave(&mut self) -> Option<Vec<Positions>> {
        None
    }

    /// Counters, by name.
    fn counters(&self) -> Value;

    /// Bytes of the header in front of each frame.
    fn header_len(&self) -> usize {
        0
    }

    /// Changes the length of the header in front of each frame, to 0, 10 or 12 bytes. Returns `false` if the frames of such ports
    /// have none.
    fn set_header_len(&mut self, _len: usize) -> bool {
        false
    }

    /// Copies frames of this port to these rings of a region, until the returned value is dropped: those of a ring to the Rx ring
    /// of the same number, in which rings of the host's stack follow those of the port. Copies that the rings have no room for are
    /// dropped.
    fn monitor(
        &self,
        watched: Watched,
        served: Vec<Kring>,
        region: &Region,
    ) -> Result<Box<dyn ServedPort>, RequestError>;
}

/// What a monitor gets copies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Whether it gets what programs send, and what they receive.
    pub ways: [bool; 2],
    /// Bit N: it gets the frames of ring N.
    pub rings: u64,
}

impl Watched {
    /// All rings, of what programs send, of what they receive, or of both.
    pub const fn all(ways: [bool; 2]) -> Self {
        Self { ways, rings: u64::MAX }
    }
}
