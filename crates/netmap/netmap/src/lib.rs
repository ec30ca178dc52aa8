//! netmap without a kernel module: the same rings in shared memory, for programs and guests that were written
//! for netmap. The serving process is in `ringpass_netmap_server`.
//!
//! | noun | meaning |
//! |---|---|
//! | application | the side of a ring that owns the slots from `head` to `tail`: a program, or a guest |
//! | server | the other side of a ring; one process serves all ports of a machine |
//! | port | what a program opens by name; it has Tx rings, Rx rings and a CSB |
//! | pipe | a port with two ends, each of which is the other's peer; nobody serves it |
//! | region | memory for rings and buffers, as its owner has it, who allocates from it |
//! | memory | a mapping of a region or a CSB, by either side; each region has a number, its memory id |
//! | pools | number and size of a region's interface descriptors, rings and buffers |
//! | interface | descriptor in a region by which a program finds the rings of a port |
//! | ring | header and slots in a region, which both sides use in circles |
//! | slot | place in a ring, with a buffer, a length and flags |
//! | buffer | room for a frame or a fragment of one in a region, named by its index |
//! | position | index of a slot in its ring: `head`, `cur` and `tail`, or the server's `hwcur` and `hwtail` |
//! | CSB | words by which both sides of a ring exchange positions, one entry for each ring |
//! | tap | memory in which the ends of a pipe leave copies of their frames for monitors |
//! | kick | wake-up of one side of a ring by the other, by a notifier |
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

mod application;
#[allow(unsafe_code, reason = "implementations of an unsafe trait")]
mod atomics;
#[allow(unsafe_code, reason = "frames in memory that several processes share")]
mod buffers;
pub mod client;
pub mod csb;
pub mod fragments;
mod kring;
pub mod layout;
mod netmap_port;
mod notifier;
mod offsets;
mod pipe;
mod pools;
mod port_memory;
mod port_ring;
mod position_cache;
mod positions;
pub mod protocol;
pub mod queues;
mod region;
mod relay;
pub mod request;
mod ring;
mod ring_lock;
#[allow(unsafe_code, reason = "copies from memory that several processes share to packets")]
pub mod run;
#[allow(unsafe_code, reason = "buffers that a table says are nobody else's")]
mod shared_pool;
mod sync_loop;
mod tap;

pub use buffers::Buffers;
pub use kring::Kring;
pub use netmap_port::open;
pub use notifier::Notifier;
pub use offsets::Offsets;
pub use pools::Pools;
pub use port_memory::{PortMemory, PortMemoryState, Shape, attach, attach_each, attach_monitor, attach_pipe};
pub use port_ring::PortRing;
pub use positions::{Direction, Positions, SyncError};
pub use region::{Error, Region, RegionState};
pub use relay::{Relay, Relayed};
pub use ring::{Flags, Ring, Slot};
pub use ring_lock::{LockedRing, forked};
pub use shared_pool::{Claim, SharedPool};
pub use sync_loop::SyncLoop;
pub use tap::Tap;
