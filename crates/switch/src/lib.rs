//! The learning switch. It knows ports only by their queues.
//!
//! A [`Switch`] is the control side: what the ports' rules say, which ports are there and up, time, counters, the
//! table. A [`Datapath`] is one worker's share: some Rx queues and one Tx queue of each port. All datapaths share the
//! table and the rules, without locks. [`vxlan`] stands before and after it, as a wrapper of a port's queues.

#![forbid(unsafe_code)]

mod config;
mod counters;
mod datapath;
mod exits;
mod frame;
mod limit;
mod switch;
mod table;
mod tag;
mod vlan;
pub mod vxlan;

pub use config::{Config, MAX_PORTS, Rules};
pub use counters::{Counter, Counts};
pub use datapath::{Datapath, Ingress, Way};
pub use switch::Switch;
pub use table::Entry;
pub use vlan::{VlanSet, Vlans};
