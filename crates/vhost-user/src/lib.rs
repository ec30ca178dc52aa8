//! The vhost-user protocol (QEMU, *docs/interop/vhost-user.rst*), both ends: how a front-end hands the rings of its
//! virtio device to a back-end in another process. Neither end trusts the other.
//!
//! Written anew rather than taken from the crate `vhost` (0.18.0), which is made for peers that behave. Its back-end reads
//! a body with one call and takes a part of it for an error, so a message that arrives in two pieces ends the session. A
//! header that arrives in two pieces keeps its thread in a loop: waiting on a socket that waits, spinning on one that does
//! not, for as long as the peer likes. Of more descriptors than 32 the rest is dropped in silence. Features are taken as
//! acknowledged even where the device refused them. SEND_RARP, NET_SET_MTU, SET_STATUS and GET_STATUS are numbered, but
//! its back-end answers them as invalid messages.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod command;
mod device;
mod dispatch;
mod error;
pub mod features;
mod frontend;
mod inflight;
mod memory_table;
mod message;
mod payload;
mod ring;
mod rings;
mod server;
mod session;
mod transport;

pub use command::Command;
pub use device::{Base, Device, Start};
pub use dispatch::{Answer, Dispatcher};
pub use error::{Ended, Name};
pub use frontend::{Frontend, SessionError};
pub use message::{
    HEADER, Header, InflightArea, Kind, MAX_PAYLOAD, MAX_TABLE, Malformed, Refusal, Region, Reply, Request, VringAddr,
    VringFd,
};
pub use server::{Control, Endpoint, Server, serve};
pub use session::Session;
