//! The vhost-user back-end as a port: receives what a guest (a virtual machine or another process) sends and
//! sends to the guest, through the virtqueues in the guest's memory.
//!
//! [`Vhost`] is the port and `rx` and `tx` are its queues. `vring` holds one virtqueue of the guest, which
//! both the packet path and the session access. `lend` lends the buffers of a virtqueue to NIC queues that
//! receive into them directly, when they ask the `lender`. `backend` is the vhost-user device that a session drives.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod announce;
mod backend;
mod backoff;
mod bytes;
mod chained;
mod copy_mode;
mod counters;
mod fault;
mod lend;
mod lender;
mod logged;
mod negotiated;
mod port;
mod rx;
mod rx_chain;
mod shared;
mod turn;
mod tx;
mod tx_chain;
mod tx_format;
mod vring;

pub use backend::Backend;
pub use copy_mode::{CopyMode, CopyModes};
pub use negotiated::DEFAULT_FEATURES;
pub use port::Vhost;
