//! netmap without a kernel module: the same rings in shared memory, for programs and guests that were written
//! for netmap.
//!
//! [`layout`] describes the shared memory byte by byte. A [`Region`] is such memory as its owner (the serving
//! side) sees it; a [`Ring`] is one ring in it, used by both sides. The serving side accepts an application's
//! `head` and `cur` only if [`Positions`] validates them, and a slot's buffer and length only if
//! [`Region::check`] does. Application and server exchange their positions through a [`csb`] entry and wake
//! each other on request.
//!
//! The layout and semantics follow netmap's documented interface (API 14); none of netmap's code is used here.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(not(loom))]
mod application;
#[allow(unsafe_code, reason = "implementations of an unsafe trait")]
mod atomics;
#[cfg(not(loom))]
pub mod bridge;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "frames in memory that several processes share")]
mod buffers;
#[cfg(not(loom))]
pub mod client;
pub mod csb;
#[cfg(not(loom))]
pub mod fragments;
#[cfg(not(loom))]
mod kring;
pub mod layout;
#[cfg(not(loom))]
mod netmap_port;
#[cfg(not(loom))]
mod notifier;
#[cfg(not(loom))]
pub mod pipe;
mod pools;
#[cfg(not(loom))]
mod port_memory;
#[cfg(not(loom))]
mod port_ring;
#[cfg(not(loom))]
mod position_cache;
mod positions;
#[cfg(not(loom))]
pub mod protocol;
#[cfg(not(loom))]
pub mod queues;
mod region;
pub mod request;
mod ring;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "copies from memory that several processes share to packets")]
pub mod run;
#[allow(unsafe_code, reason = "buffers that a table says are nobody else's")]
mod shared_pool;

#[cfg(not(loom))]
pub use application::Application;
#[cfg(not(loom))]
pub use buffers::Buffers;
#[cfg(not(loom))]
pub use kring::Kring;
#[cfg(not(loom))]
pub use netmap_port::NetmapPort;
#[cfg(not(loom))]
pub use notifier::Notifier;
pub use pools::Pools;
#[cfg(not(loom))]
pub use port_memory::{PortMemory, Shape, attach, attach_each, attach_pipe};
#[cfg(not(loom))]
pub use port_ring::PortRing;
pub use positions::{Direction, InvalidPositions, Positions, SyncError};
pub use region::{Error, Region};
pub use ring::{Flags, Ring, Slot};
pub use ringpass_memory::{Cells, Memory};
pub use ringpass_port::AdaptiveSpin;
pub use shared_pool::{Claim, SharedPool};
