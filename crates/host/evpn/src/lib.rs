//! EVPN (RFC 7432, 8365) for a switch with a VXLAN tunnel, by FRR.
//!
//! FRR speaks BGP with other hosts and keeps what it learns in tables of the kernel. For each network of the tunnel there are three
//! devices, which carry no traffic ([`devices`]): a VXLAN device, to which FRR adds the stations and ends of other hosts; a bridge, in which
//! FRR looks for this host's own stations; and a TAP in that bridge, into which this process writes a frame for each of them and of their IP addresses. A
//! [`Follower`] is the thread that does both.

#![forbid(unsafe_code)]

mod announcer;
pub mod check;
mod claims;
pub mod devices;
mod fdb;
mod follower;

pub use follower::{Files, Follower, Site};
