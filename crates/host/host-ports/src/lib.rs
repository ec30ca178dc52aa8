//! Ports backed by the host: TAP interfaces ([`Tap`]), packet sockets ([`PacketSocket`]), XDP sockets ([`Xdp`]), capture files
//! ([`Pcap`]), [`Null`], the in-process [`cable`], and decorators that wrap any other port ([`Capture`],
//! [`Faults`]).
//!
//! `unsafe` is confined to `ring` (the cable's ring), `tpacket_ring` (the packet socket's), `xdp::ring` and
//! `xdp::bpf` (an XDP socket's) and `sys` (system calls that rustix lacks).

#![deny(unsafe_code)]

mod buffers;
mod cable;
mod capture;
pub mod capture_file;
mod faults;
mod need_wakeup;
mod netdev;
mod null;
mod packet_socket;
mod pcap;
mod presence;
mod ring;
mod sys;
mod tap;
mod tpacket_ring;
mod vlan_tag;
mod xdp;

pub use cable::{CableEnd, cable};
pub use capture::{Capture, LiveCapture};
pub use faults::Faults;
pub use netdev::{KernelInterface, XdpFeatures, kernel_interface};
pub use null::Null;
pub use packet_socket::PacketSocket;
pub use pcap::Pcap;
pub use sys::max_ring_sizes;
pub use tap::{Tap, TapFiles};
pub use xdp::{Xdp, XdpServer, XdpServerEvent};
