//! The learning switch. It accesses ports only through their queues.
//!
//! A [`Switch`] is the control side: the slots for ports and their policies, link states, time, counters and
//! the MAC table. A [`Datapath`] is one worker's part: some Rx queues, and one Tx queue of each port. Ports are
//! added and removed while datapaths run. All datapaths share the table and the policies without locks.
//! [`vxlan`] is separate: it wraps a port's queues.

#![forbid(unsafe_code)]

mod buckets;
mod changes;
mod config;
mod counters;
mod datapath;
mod egress;
mod flows;
mod frame;
mod journal;
mod lookup;
mod rate_limiter;
mod state;
mod switch;
mod table;
mod tag;
mod vlan;
pub mod vxlan;

pub use changes::{DatapathQueues, ExchangeRx, ExchangeTx, Forwarding, QueueExchange};
pub use config::{Config, MAX_PORTS, PortPolicy};
pub use counters::{Counter, Counts};
pub use datapath::Datapath;
pub use journal::{Arrival, News};
pub use switch::{Placement, Switch};
pub use table::Entry;
pub use vlan::{VlanSet, Vlans};
