//! Which queue a received frame goes to.

use std::net::Ipv4Addr;

use crate::MacAddress;

/// How received frames are spread over the queues of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// By a hash of addresses and ports (RSS), so that a flow stays on its queue.
    #[default]
    Hash,
    /// To the first queue, but for what a [`Rule`] steers elsewhere: a queue receives only what is meant for it.
    Steered,
}

/// Frames that are meant for one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Frames to a MAC address, in a VLAN (id 0 to 4095) or untagged. Needs [`Spread::Steered`].
    Address {
        /// Destination.
        mac: MacAddress,
        /// VLAN id.
        vlan: Option<u16>,
    },
    /// Packets over IPv4 with the given addresses, protocol and ports; `None` matches any. Comes before the hash, and
    /// with [`Spread::Steered`] before addresses.
    Tuple {
        /// Protocol.
        protocol: Option<Protocol>,
        /// Source address.
        source: Option<Ipv4Addr>,
        /// Destination address.
        destination: Option<Ipv4Addr>,
        /// Source port.
        source_port: Option<u16>,
        /// Destination port.
        destination_port: Option<u16>,
    },
}

/// A protocol over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}
