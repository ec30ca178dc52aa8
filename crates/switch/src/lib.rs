//! The learning switch. It knows ports only by their queues.
//!
//! A [`Switch`] is the control side: places for ports with their rules, which ports are there and up, time, counters, the
//! table. A [`Datapath`] is one worker's share: some Rx queues and one Tx queue of each port. Ports come and go while
//! datapaths run. All datapaths share the table and the rules, without locks. [`vxlan`] stands before and after it, as a
//! wrapper of a port's queues.

#![forbid(unsafe_code)]

mod changes;
mod config;
mod counters;
mod datapath;
mod exits;
mod frame;
mod limit;
mod lookup;
mod switch;
mod table;
mod tag;
mod vlan;
pub mod vxlan;

pub use changes::Share;
pub use config::{Config, MAX_PORTS, Rules};
pub use counters::{Counter, Counts};
pub use datapath::{Datapath, Way};
pub use switch::Switch;
pub use table::Entry;
pub use vlan::{VlanSet, Vlans};
