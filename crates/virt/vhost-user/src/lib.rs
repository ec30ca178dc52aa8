//! The vhost-user protocol (QEMU, *docs/interop/vhost-user.rst*), both ends: a front-end hands the rings of
//! its virtio device to a back-end in another process. Neither end trusts the other.
//!
//! This implementation does not use the crate `vhost` (0.18.0), which expects well-behaved peers. Its
//! back-end reads a body with one call and treats a partial read as an error, so a message that arrives in
//! two pieces ends the session. A header that arrives in two pieces keeps its thread in a loop, blocking or
//! spinning (depending on the socket's mode) for as long as the peer likes. Descriptors beyond the 32nd are
//! dropped silently. Features count as acknowledged even if the device refused them. SEND_RARP, NET_SET_MTU,
//! SET_STATUS and GET_STATUS have numbers, but its back-end answers them as invalid messages.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod command;
mod device;
mod dirty_log;
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
pub use device::{Device, QueueStart, VringBase};
pub use dirty_log::DirtyLog;
pub use dispatch::{Dispatcher, ReplyMessage};
pub use error::{CommandName, Ended};
pub use frontend::{Frontend, SessionError};
pub use message::{
    HEADER, Header, InflightArea, Kind, MAX_PAYLOAD, MAX_TABLE, Malformed, Refusal, Region, Reply, Request, VringAddr,
    VringFd,
};
pub use server::{Endpoint, Server, ServerHandle, serve};
pub use session::Session;

pub use ringpass_ipc::ConnectionLost;
