//! What the server knows of VALE switches: somebody makes ports of them.

use std::os::fd::BorrowedFd;

use ringpass_peer::Signal;
use rustix::io::Errno;
use serde_json::Value;

use super::Refusal;
use crate::{Buffers, Served};

/// Who has the switches. A switch is made with its first port and goes with its last.
pub trait Switches {
    /// Makes a port of a switch, `vale…`, that moves frames between the switch and these rings.
    fn open(
        &mut self,
        switch: &str,
        port: &str,
        served: Vec<Served>,
        buffers: Buffers,
    ) -> Result<Box<dyn ServedPort>, Refusal>;

    /// Attaches a port of another kind to a switch: `vale…:ADDRESS`.
    fn attach(&mut self, name: &str) -> Result<(), Refusal>;

    /// Takes it away again.
    fn detach(&mut self, name: &str) -> Result<(), Refusal>;

    /// What switches there are.
    fn status(&self) -> Value;
}

/// There are none: all that there is are pipes and ports of the machine.
pub struct NoSwitches;

impl Switches for NoSwitches {
    fn open(&mut self, switch: &str, _: &str, _: Vec<Served>, _: Buffers) -> Result<Box<dyn ServedPort>, Refusal> {
        Err(Refusal::new(Errno::NXIO, format!("no switch {switch}")))
    }

    fn attach(&mut self, name: &str) -> Result<(), Refusal> {
        Err(Refusal::new(Errno::NXIO, format!("no switch for {name}")))
    }

    fn detach(&mut self, name: &str) -> Result<(), Refusal> {
        self.attach(name)
    }

    fn status(&self) -> Value {
        Value::Null
    }
}

/// A port of a switch. It ends when dropped: after that nobody touches its rings.
pub trait ServedPort {
    /// The eventfd by which programs wake the switch.
    fn kick(&self) -> BorrowedFd<'_>;

    /// Another program wants to be woken for rings: those whose entries of the CSB are set in the word.
    fn listen(&mut self, number: u64, entries: u64, call: Signal);

    /// It does no longer.
    fn ignore(&mut self, number: u64);

    /// Counters, by name.
    fn counters(&self) -> Value;

    /// Copies of the frames that programs of this port send and receive, where said, go to these rings from now on, until what
    /// is returned is dropped. Where those have no room, copies are dropped.
    fn monitor(&self, ways: [bool; 2], served: Vec<Served>, buffers: &Buffers) -> Result<Box<dyn ServedPort>, Refusal>;
}
