//! The flow that a packet belongs to.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ringpass_memory::Packet;

use super::{EtherType, Header, IpProtocol, Ipv4, Ipv6, Transport};
use crate::software::ethertype;

/// Addresses, protocol and ports of a packet.
///
/// ```
/// # use etherparse::PacketBuilder;
/// use ringpass_memory::{Mempool, MempoolConfig};
/// use ringpass_port::headers::Flow;
///
/// # let mut frame = Vec::new();
/// # let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([192, 0, 2, 1], [192, 0, 2, 9], 64).udp(5353, 53);
/// # builder.write(&mut frame, b"a question").unwrap();
/// let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() })?;
/// let mut packet = pool.alloc().expect("a buffer");
/// packet.copy_from(&frame);
/// let flow = Flow::of(&packet).expect("an IP packet");
/// assert_eq!(flow.to_string(), "udp 192.0.2.1:5353 192.0.2.9:53");
/// assert_eq!(flow.reversed().to_string(), "udp 192.0.2.9:53 192.0.2.1:5353");
/// # Ok::<(), ringpass_memory::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// Protocol behind the IP header.
    pub protocol: IpProtocol,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// Port of the sender, or the identifier of an echo; 0 for other protocols and for fragments.
    pub source_port: u16,
    /// Port of the receiver, likewise.
    pub destination_port: u16,
}

impl Flow {
    /// Reads the flow of a packet of IPv4 or IPv6, behind up to two VLAN tags. `None` for all others. Behind extension headers of
    /// IPv6, the protocol is that of the first of them.
    #[inline]
    pub fn of(packet: &Packet) -> Option<Self> {
        let (ether_type, at) = ethertype(packet.bytes())?;
        match EtherType(ether_type) {
            EtherType::IPV4 => {
                let ip = Ipv4::read(packet, at)?;
                let behind = (!ip.is_fragment()).then_some(at + ip.header_len());
                Some(Self::new(packet, ip.protocol(), ip.source().into(), ip.destination().into(), behind))
            }
            EtherType::IPV6 => {
                let ip = Ipv6::read(packet, at)?;
                let behind = Some(at + Ipv6::LEN);
                Some(Self::new(packet, ip.next_header(), ip.source().into(), ip.destination().into(), behind))
            }
            _ => None,
        }
    }

    #[inline]
    fn new(packet: &Packet, protocol: IpProtocol, source: IpAddr, destination: IpAddr, behind: Option<usize>) -> Self {
        let transport = behind.and_then(|at| Transport::read(packet, at, protocol));
        let port = |of: fn(&Transport) -> u16| transport.as_ref().map_or(0, of);
        let (source_port, destination_port) = (port(Transport::source_port), port(Transport::destination_port));
        Self { protocol, source, destination, source_port, destination_port }
    }

    /// Returns the flow of the answers.
    #[inline]
    pub fn reversed(self) -> Self {
        Self {
            protocol: self.protocol,
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            IpProtocol::TCP => "tcp",
            IpProtocol::UDP => "udp",
            IpProtocol(number) => return write!(out, "ip {number} {} {}", self.source, self.destination),
        };
        let source = SocketAddr::new(self.source, self.source_port);
        let destination = SocketAddr::new(self.destination, self.destination_port);
        write!(out, "{name} {source} {destination}")
    }
}
