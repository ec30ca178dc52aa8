//! Headers of frames, read from a packet once and written back, without allocation.
//!
//! A packet's bytes may change while they are read, so a header is a copy: its fields are read by name, changed, and written
//! back. A change of a field that a checksum covers adjusts that checksum (RFC 1624), in the header itself or by a
//! [`ChecksumChange`] that the next header takes.
//!
//! A network address translator changes the source of a UDP packet:
//!
//! ```
//! use ringpass_memory::{Mempool, MempoolConfig, Packet};
//! use ringpass_port::headers::{EtherType, Ethernet, Header, Ipv4, IpProtocol, Udp};
//! # use etherparse::PacketBuilder;
//!
//! fn translate(packet: &mut Packet) -> Option<()> {
//!     Ethernet::read(packet, 0).filter(|ethernet| ethernet.ether_type() == EtherType::IPV4)?;
//!     let mut ip = Ipv4::read(packet, Ethernet::LEN).filter(|ip| ip.protocol() == IpProtocol::UDP && !ip.is_fragment())?;
//!     let ports = Ethernet::LEN + ip.header_len();
//!     let mut udp = Udp::read(packet, ports)?;
//!     let change = ip.set_source([203, 0, 113, 1].into());
//!     udp.apply(change);
//!     udp.set_source_port(4000);
//!     ip.write(packet, Ethernet::LEN);
//!     udp.write(packet, ports);
//!     Some(())
//! }
//!
//! # let frame = |source: [u8; 4], port| {
//! #     let mut frame = Vec::new();
//! #     let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(source, [192, 0, 2, 9], 64).udp(port, 53);
//! #     builder.write(&mut frame, b"a question").unwrap();
//! #     frame
//! # };
//! let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() })?;
//! let mut packet = pool.alloc().expect("a buffer");
//! packet.copy_from(&frame([192, 168, 1, 2], 5353));
//! assert!(translate(&mut packet).is_some());
//! assert_eq!(packet.to_vec(), frame([203, 0, 113, 1], 4000), "checksums too");
//! # Ok::<(), ringpass_memory::Error>(())
//! ```

mod arp;
mod change;
mod ethernet;
mod flow;
mod icmp;
mod ipv4;
mod ipv6;
mod tcp;
#[cfg(test)]
mod tests;
mod transport;
mod udp;

pub use arp::Arp;
pub use change::ChecksumChange;
pub use ethernet::{EtherType, Ethernet, Vlan};
pub use flow::Flow;
pub use icmp::Icmp;
pub use ipv4::{IpProtocol, Ipv4};
pub use ipv6::Ipv6;
pub use tcp::{Tcp, TcpFlags};
pub use transport::Transport;
pub use udp::Udp;

use ringpass_memory::Packet;

/// A header: a copy of its bytes without options, in the order of the wire.
pub trait Header: Sized {
    /// Length in bytes, without options.
    const LEN: usize;

    /// Copies the header at offset `at` out of the packet's first segment. `None` if its bytes are not all there, or if a
    /// field says that they are not such a header.
    fn read(packet: &Packet, at: usize) -> Option<Self>;

    /// Writes the header to offset `at` of the packet's first segment.
    ///
    /// # Panics
    /// If the packet is shorter.
    fn write(&self, packet: &mut Packet, at: usize);
}

/// Defines a header of some bytes, with a check of those that are read.
macro_rules! header {
    ($(#[$docs:meta])* $name:ident, $len:literal, $is_valid:expr) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name([u8; $len]);

        impl $crate::headers::Header for $name {
            const LEN: usize = $len;

            #[inline]
            fn read(packet: &ringpass_memory::Packet, at: usize) -> Option<Self> {
                let is_valid: fn(&[u8; $len]) -> bool = $is_valid;
                packet.array(at).filter(is_valid).map(Self)
            }

            #[inline]
            fn write(&self, packet: &mut ringpass_memory::Packet, at: usize) {
                packet.write(at, &self.0);
            }
        }

        impl $name {
            /// Takes the header from these bytes. `None` if a field says that they are not such a header.
            #[inline]
            pub fn from_bytes(bytes: [u8; $len]) -> Option<Self> {
                let is_valid: fn(&[u8; $len]) -> bool = $is_valid;
                Some(bytes).filter(is_valid).map(Self)
            }

            /// Returns the bytes of the header.
            #[inline]
            pub fn bytes(&self) -> [u8; $len] {
                self.0
            }

            #[inline]
            #[allow(dead_code)]
            fn get<const N: usize>(&self, at: usize) -> [u8; N] {
                *self.0[at..].first_chunk().expect("a field of the header")
            }

            #[inline]
            #[allow(dead_code)]
            fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
                self.0[at..at + N].copy_from_slice(&bytes);
            }

            /// Changes bytes at an even offset; returns what that changes in a checksum.
            #[inline]
            #[allow(dead_code)]
            fn replace<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> $crate::headers::ChecksumChange {
                let change = $crate::headers::ChecksumChange::of(&self.get::<N>(at), &bytes);
                self.set(at, bytes);
                change
            }
        }
    };
}
use header;

/// Gives a header with the ports in its first four bytes access to them.
macro_rules! ports {
    ($name:ident) => {
        impl $name {
            /// Returns the port of the sender.
            #[inline]
            pub fn source_port(&self) -> u16 {
                u16::from_be_bytes(self.get(0))
            }

            /// Changes the port of the sender.
            #[inline]
            pub fn set_source_port(&mut self, port: u16) {
                let change = self.replace(0, port.to_be_bytes());
                self.apply(change);
            }

            /// Returns the port of the receiver.
            #[inline]
            pub fn destination_port(&self) -> u16 {
                u16::from_be_bytes(self.get(2))
            }

            /// Changes the port of the receiver.
            #[inline]
            pub fn set_destination_port(&mut self, port: u16) {
                let change = self.replace(2, port.to_be_bytes());
                self.apply(change);
            }
        }
    };
}
use ports;
