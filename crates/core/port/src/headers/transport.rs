//! Headers that have ports, or an identifier in their place.

use ringpass_memory::Packet;

use super::{ChecksumChange, Header, Icmp, IpProtocol, Tcp, Udp};

/// The header behind an IP header: of TCP, of UDP, or of an echo, whose identifier counts as both ports, because network address
/// translators treat it like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A TCP header.
    Tcp(Tcp),
    /// A UDP header.
    Udp(Udp),
    /// An ICMP echo request or reply.
    Echo(Icmp),
    /// An ICMPv6 echo request or reply.
    EchoV6(Icmp),
}

/// Calls a method of whichever header there is.
macro_rules! each {
    ($self:ident, $header:ident => $call:expr, $echo:ident => $call_echo:expr) => {
        match $self {
            Self::Tcp($header) => $call,
            Self::Udp($header) => $call,
            Self::Echo($echo) | Self::EchoV6($echo) => $call_echo,
        }
    };
}

impl Transport {
    /// Copies the header at offset `at` out of a packet that is not a fragment, or the first one. `None` if its bytes are not all
    /// there, for other protocols, and for other messages of ICMP.
    #[inline]
    pub fn read(packet: &Packet, at: usize, protocol: IpProtocol) -> Option<Self> {
        match protocol {
            IpProtocol::TCP => Tcp::read(packet, at).map(Self::Tcp),
            IpProtocol::UDP => Udp::read(packet, at).map(Self::Udp),
            IpProtocol::ICMP => {
                let is_echo = |icmp: &Icmp| matches!(icmp.kind(), Icmp::ECHO_REQUEST | Icmp::ECHO_REPLY);
                Icmp::read(packet, at).filter(is_echo).map(Self::Echo)
            }
            IpProtocol::ICMPV6 => {
                let is_echo = |icmp: &Icmp| matches!(icmp.kind(), Icmp::ECHO_REQUEST_V6 | Icmp::ECHO_REPLY_V6);
                Icmp::read(packet, at).filter(is_echo).map(Self::EchoV6)
            }
            _ => None,
        }
    }

    /// Writes the header to offset `at` of the packet's first segment.
    ///
    /// # Panics
    /// If the packet is shorter.
    #[inline]
    pub fn write(&self, packet: &mut Packet, at: usize) {
        each!(self, header => header.write(packet, at), echo => echo.write(packet, at));
    }

    /// Returns the port of the sender.
    #[inline]
    pub fn source_port(&self) -> u16 {
        each!(self, header => header.source_port(), echo => echo.identifier())
    }

    /// Changes the port of the sender, and the checksum.
    #[inline]
    pub fn set_source_port(&mut self, port: u16) {
        each!(self, header => header.set_source_port(port), echo => echo.set_identifier(port));
    }

    /// Returns the port of the receiver.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        each!(self, header => header.destination_port(), echo => echo.identifier())
    }

    /// Changes the port of the receiver, and the checksum.
    #[inline]
    pub fn set_destination_port(&mut self, port: u16) {
        each!(self, header => header.set_destination_port(port), echo => echo.set_identifier(port));
    }

    /// Adjusts the checksum to a change of the IP header's addresses, unless it does not cover them, as that of ICMP.
    #[inline]
    pub fn apply(&mut self, change: ChecksumChange) {
        match self {
            Self::Tcp(tcp) => tcp.apply(change),
            Self::Udp(udp) => udp.apply(change),
            Self::Echo(_) => {}
            Self::EchoV6(echo) => echo.apply(change),
        }
    }
}
