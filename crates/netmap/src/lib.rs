//! netmap without a kernel module: the same rings in shared memory, for programs and guests that were written for netmap.
//!
//! [`layout`] is what lies in the memory, byte by byte. A [`Region`] is such memory, as the one who serves it knows it; a
//! [`Ring`] is a ring in it, whichever side looks at it. Whoever serves a ring believes an application's `head` and `cur`
//! only as far as [`Positions`] says, and a slot's buffer and length only as far as [`Region::check`] does. Application and
//! server tell each other their positions by a [`csb`] entry, and wake each other where asked.
//!
//! The facts are those of netmap's documented interface (API 14); none of its code is here.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(not(loom))]
mod application;
#[cfg(not(loom))]
pub mod bridge;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "frames in memory that several processes share")]
mod buffers;
#[cfg(not(loom))]
pub mod client;
pub mod csb;
pub mod layout;
#[allow(unsafe_code, reason = "memory that several processes share")]
mod memory;
#[cfg(not(loom))]
pub mod native;
#[cfg(not(loom))]
mod pieces;
#[cfg(not(loom))]
pub mod pipe;
#[cfg(not(loom))]
mod place;
#[cfg(not(loom))]
mod port_memory;
#[cfg(not(loom))]
mod port_ring;
mod positions;
#[cfg(not(loom))]
mod program_port;
#[cfg(not(loom))]
pub mod protocol;
#[cfg(not(loom))]
pub mod queues;
mod region;
pub mod request;
mod ring;
#[cfg(not(loom))]
mod seen;
#[cfg(not(loom))]
mod served;
#[cfg(not(loom))]
pub mod server;
#[cfg(not(loom))]
pub mod vale;

#[cfg(not(loom))]
pub use application::Application;
#[cfg(not(loom))]
pub use buffers::Buffers;
pub use memory::{Cells, Memory};
#[cfg(not(loom))]
pub use place::Place;
#[cfg(not(loom))]
pub use port_memory::{PortMemory, Shape, attach, attach_each, attach_pipe};
#[cfg(not(loom))]
pub use port_ring::{Bell, PortRing, SyncError};
pub use positions::{Direction, Positions, Wild};
#[cfg(not(loom))]
pub use program_port::ProgramPort;
pub use region::{Error, Pools, Region};
pub use ring::{Flags, Ring, Slot};
pub use ringpass_port::Patience;
#[cfg(not(loom))]
pub use served::Served;
