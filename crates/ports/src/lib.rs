//! Ports that are no drivers: the kernel's interfaces ([`Tap`], [`PacketSocket`]), capture files ([`Pcap`]), [`Null`],
//! the in-process [`cable`], and what wraps any other port ([`Capture`], [`Faults`]).
//!
//! `unsafe` is confined to `ring` (the cable's ring), `kernel_ring` (the packet socket's) and `sys` (system calls that
//! rustix lacks).

#![deny(unsafe_code)]

mod buffers;
mod cable;
mod capture;
pub mod capture_file;
mod faults;
mod kernel_ring;
mod null;
mod packet_socket;
mod pcap;
mod presence;
mod ring;
mod sleeper;
mod sys;
mod tap;

pub use cable::{CableEnd, cable};
pub use capture::Capture;
pub use faults::Faults;
pub use null::Null;
pub use packet_socket::PacketSocket;
pub use pcap::Pcap;
pub use sys::largest_rings;
pub use tap::Tap;
