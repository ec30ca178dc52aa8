//! Addresses and headers of the frames that `pktgen` sends, and the mark in their payload: a run, a flow, a sequence number and a time.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringpass::MacAddress;
use ringpass_memory::{Headers, L4, RawBytes};

/// Sender and receiver of the frames, and the headers between them.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    /// MAC addresses of sender and receiver.
    pub mac: (MacAddress, MacAddress),
    /// Tag control information of the VLAN tag, for frames with one: priority and VLAN id (IEEE 802.1Q, 9.6).
    pub vlan: Option<u16>,
    /// IP addresses.
    pub ip: Addresses,
    /// Transport protocol.
    pub transport: L4,
    /// UDP or TCP port of the receiver.
    pub port: u16,
    /// Number of this run, which tells its frames from others.
    pub run: u16,
}

/// Returns a number for a run that other generators hardly have, even those in containers, where processes have the same numbers.
pub fn random_run() -> u16 {
    RandomState::new().build_hasher().finish() as u16
}

/// IP addresses of sender and receiver, of one family. The sender's is that of flow 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Address of the sender.
        source: Ipv4Addr,
        /// Address of the receiver.
        destination: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Address of the sender.
        source: Ipv6Addr,
        /// Address of the receiver.
        destination: Ipv6Addr,
    },
}

impl Addresses {
    /// Completes the addresses of a command line by those for benchmarks (RFC 2544, C.2.2; RFC 5180, 8). Returns
    /// `None` if they are of two families.
    pub fn new(source: Option<IpAddr>, destination: Option<IpAddr>) -> Option<Self> {
        let is_v6 = source.or(destination).is_some_and(|address| address.is_ipv6());
        let (here, there): (IpAddr, IpAddr) = if is_v6 {
            (Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1).into())
        } else {
            (Ipv4Addr::new(198, 18, 0, 1).into(), Ipv4Addr::new(198, 19, 0, 1).into())
        };
        match (source.unwrap_or(here), destination.unwrap_or(there)) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6 { source, destination }),
            _ => None,
        }
    }
}

/// Fields of a frame that differ from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Flow number, below [`FLOWS`].
    pub flow: u32,
    /// Sequence number within the flow, below 2^48.
    pub sequence: u64,
    /// Nanoseconds since an epoch chosen by the sender.
    pub time: u64,
}

/// Largest number of flows.
pub const FLOWS: usize = 1 << SEQUENCE_START;
const SEQUENCE_START: u32 = 16;

/// First source port, and number of source ports for each source address. The ports are dynamic ones (RFC 6335,
/// 6).
pub const SOURCE_PORTS: (u16, u32) = (49152, 16384);

/// Returns the source port of a flow.
#[inline]
pub fn source_port(flow: u32) -> u16 {
    SOURCE_PORTS.0 + (flow % SOURCE_PORTS.1) as u16
}

impl Mark {
    /// Bytes of a mark, with the run before it.
    pub const LEN: usize = 2 + 8 + 8;

    /// Returns flow and sequence number as they are in the frame.
    #[inline]
    pub fn number(&self) -> u64 {
        u64::from(self.flow) << (u64::BITS - SEQUENCE_START) | self.sequence
    }

    /// Returns a frame's mark if it is of this run.
    #[inline]
    fn from_bytes(bytes: [u8; Self::LEN], run: u16) -> Option<Self> {
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (number, time) = (long(2), long(10));
        let flow = (number >> (u64::BITS - SEQUENCE_START)) as u32;
        let sequence = number & (u64::MAX >> SEQUENCE_START);
        (bytes[..2] == run.to_be_bytes()).then_some(Self { flow, sequence, time })
    }
}

/// Shortest frame in bytes: Ethernet's minimum without CRC, which just holds the mark of UDP over IPv4 without a tag.
pub const MIN: usize = 60;
/// Longest frame in bytes, without CRC.
pub const MAX: usize = 14 + 9710;

/// EtherType of a VLAN tag.
const TAG: [u8; 2] = [0x81, 0x00];

impl Endpoints {
    /// Returns the lengths of the headers.
    pub fn headers(&self) -> Headers {
        Headers {
            l2: if self.vlan.is_some() { 18 } else { 14 },
            l3: match self.ip {
                Addresses::V4 { .. } => 20,
                Addresses::V6 { .. } => 40,
            },
            l4: match self.transport {
                L4::Udp => 8,
                L4::Tcp => 20,
            },
            protocol: self.transport,
        }
    }

    /// Returns the same for frames the other way.
    pub fn reversed(&self) -> Self {
        let ip = match self.ip {
            Addresses::V4 { source, destination } => Addresses::V4 { source: destination, destination: source },
            Addresses::V6 { source, destination } => Addresses::V6 { source: destination, destination: source },
        };
        Self { mac: (self.mac.1, self.mac.0), ip, ..*self }
    }

    /// Returns the length in bytes of the shortest frame with these headers.
    pub fn shortest(&self) -> usize {
        self.headers().payload_start() + Mark::LEN
    }

    /// Returns the mark of a frame, or `None` unless it belongs to this run and to one of its first `flows`
    /// flows. The frame may have lost its VLAN tag on its way, or got one.
    #[inline]
    pub fn read<'a>(&self, frame: impl Into<RawBytes<'a>>, flows: u32) -> Option<Mark> {
        let frame = frame.into();
        let ethernet: [u8; 18] = frame.array(0)?;
        let l3 = if ethernet[12..14] == TAG { 18 } else { 14 };
        let ether_type = [ethernet[l3 - 2], ethernet[l3 - 1]];
        let protocol = match self.transport {
            L4::Udp => 17,
            L4::Tcp => 6,
        };
        let is_own = match self.ip {
            Addresses::V4 { .. } => {
                let ip: [u8; 20] = frame.array(l3)?;
                ether_type == [0x08, 0x00] && ip[0] == 0x45 && ip[9] == protocol
            }
            Addresses::V6 { .. } => {
                let ip: [u8; 40] = frame.array(l3)?;
                ether_type == [0x86, 0xdd] && ip[0] >> 4 == 6 && ip[6] == protocol
            }
        };
        let headers = self.headers();
        let mark = frame.array(l3 + usize::from(headers.l3) + usize::from(headers.l4))?;
        Mark::from_bytes(mark, self.run).filter(|mark| is_own && mark.flow < flows)
    }
}
