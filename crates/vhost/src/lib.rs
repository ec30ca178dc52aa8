//! The vhost-user back-end as a port: what a guest (a virtual machine, or a process) sends is received here, and the other
//! way round, by way of the virtqueues in its memory.
//!
//! Seen from a packet: [`Vhost`] is the port, `rx` and `tx` are its queues, `vring` is a guest's queue that both they and
//! the session reach, `lend` what cards receive into of it, `backend` is what the session drives.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod agreed;
mod announce;
mod backend;
mod bytes;
mod chained;
mod counters;
mod fault;
mod lend;
mod pause;
mod port;
mod rx;
mod rx_chain;
mod shared;
mod tx;
mod tx_chain;
mod vring;

pub use agreed::USUAL;
pub use backend::Backend;
pub use port::{Copies, Copying, Vhost};
