//! The serving process of netmap ports: what `ringpass netmapd` is made of. A program's side, and the memory that
//! both share, are in `ringpass_netmap`.
//!
//! A [`Server`] gives programs their ports: pipes, whose frames it never sees, ports of VALE switches ([`RingPort`])
//! and native ports ([`NativePort`]). It knows switches and native ports as traits, [`Switches`] and [`Native`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod buffer_access;
mod copies;
mod native;
mod server;
mod vale;

use buffer_access::BufferAccess;
pub use native::{NativePort, PollingMode, RingForwarder, SwitchLinks};
pub use server::{
    Administrators, Budget, COMMON_MEMORY, Native, RequestError, Reservation, ServedPort, ServedRings, Server,
    SwitchPlace, Switches, Watched, ZERO_COPY_MEMORY,
};
pub use vale::RingPort;
