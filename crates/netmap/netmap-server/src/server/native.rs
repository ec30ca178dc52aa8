//! The server's interface to native ports.

use ringpass_netmap::{Kring, Region};
use serde_json::Value;

use super::{COMMON_MEMORY, RequestError, ServedPort, ZERO_COPY_MEMORY};
use crate::{PollingMode, SwitchLinks};

/// A native port: a card, TAP or other port in netmap mode, which programs open as `netmap:NAME`.
pub trait Native {
    /// Number of Tx rings, and of Rx rings: one of each for each queue.
    fn rings(&self) -> u16;

    /// Returns whether the host's stack is behind it, so that it has rings of that, too.
    fn has_host(&self) -> bool;

    /// Whether its packets are of the pool in [`ZERO_COPY_MEMORY`]. If so, its rings
    /// must lie there, too.
    fn exchanges(&self) -> bool;

    /// Returns the number of the memory in which its rings lie.
    fn memory_id(&self) -> u16 {
        if self.exchanges() { ZERO_COPY_MEMORY } else { COMMON_MEMORY }
    }

    /// Attaches these rings of a region, in the order of their CSB entries, to the port's queues and the host's stack, until the
    /// returned value is dropped. No other rings are attached at that time.
    fn join(&mut self, served: Vec<Kring>, region: &Region) -> Result<Box<dyn ServedPort>, RequestError>;

    /// Attaches the port to a switch, in place of rings of programs, until [`detach`](Self::detach).
    fn attach(&mut self, links: SwitchLinks);

    /// Detaches the port from its switch.
    fn detach(&mut self);

    /// Has the attached port polled without pause, or not any more (`None`).
    fn poll(&mut self, mode: Option<PollingMode>) -> Result<(), RequestError>;

    /// Returns why the port does not work any more, or `None` if it does. Called several times a second.
    fn gone(&mut self) -> Option<String>;

    /// Link, address and counters, by name.
    fn status(&self) -> Value;
}
