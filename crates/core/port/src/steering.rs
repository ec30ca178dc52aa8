//! Steering: which queue a received frame goes to.

use std::net::Ipv4Addr;

use crate::MacAddress;

/// Distribution of received frames over the queues of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// By a hash of addresses and ports (RSS), so that a flow stays on its queue.
    #[default]
    Hash,
    /// To the first queue, except for frames that a [`Rule`] steers to another one. Every other queue receives
    /// only the frames steered to it.
    Steered,
}

/// A match on frames that are to go to one queue; see [`Port::steer`](crate::Port::steer).
///
/// ```no_run
/// # fn steer(card: &mut dyn ringpass_port::Port) -> Result<(), ringpass_port::Error> {
/// use ringpass_port::Rule;
///
/// // With `Spread::Steered`, queue 1 receives frames to this address, and queue 0 all others.
/// card.steer(&Rule::Address { mac: "02:00:00:00:00:01".parse().expect("six bytes"), vlan: None }, 1)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Frames to a MAC address, in a VLAN (id 0 to 4095) or untagged. Needs [`Spread::Steered`].
    Address {
        /// Destination.
        mac: MacAddress,
        /// VLAN id.
        vlan: Option<u16>,
    },
    /// IPv4 packets with the given addresses, protocol and ports; `None` matches any. Takes precedence over the
    /// hash and, with [`Spread::Steered`], over addresses.
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

/// A transport protocol over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}
