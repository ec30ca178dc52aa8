//! What the server knows of the machine's ports that it serves.

use serde_json::Value;

use super::{Refusal, ServedPort};
use crate::{Place, Served};

/// A port of the machine, which programs have as `netmap:NAME`.
pub trait Native {
    /// How many rings to send it has, and as many to receive: one for each of its queues.
    fn rings(&self) -> u16;

    /// Whether its packets are of the pool that lies in [`EXCHANGED`](super::EXCHANGED), so that its rings are to lie there too.
    fn exchanges(&self) -> bool;

    /// Joins these rings with its queues, those to send first, until what is returned is dropped. Nobody else has joined any
    /// then.
    fn join(&mut self, served: Vec<Served>, place: &Place) -> Result<Box<dyn ServedPort>, Refusal>;

    /// Why it no longer works, if so. Asked for some times a second.
    fn gone(&mut self) -> Option<String>;

    /// Its link, address and counters, by name.
    fn status(&self) -> Value;
}
