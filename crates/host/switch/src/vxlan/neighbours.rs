//! Hardware addresses of neighbours: asked for and said by ARP for IPv4, by neighbor discovery for IPv6.

use std::net::{IpAddr, Ipv6Addr};

use ringpass_memory::RawBytes;
use ringpass_port::MacAddress;

use super::arp::{self, Arp, Operation};
use super::nd::{self, Nd};

/// Hardware address and IP address of a station.
pub(super) type Neighbour = ([u8; 6], IpAddr);

/// The message for this end in a frame about neighbours.
pub(super) struct Heard {
    /// Present if a station says its addresses.
    pub(super) neighbour: Option<Neighbour>,
    /// Present if this end is to answer: the frame.
    pub(super) answer: Option<Vec<u8>>,
}

impl Heard {
    /// Parses a frame; `None` if it is about something else, or for somebody else.
    pub(super) fn parse<'a>(frame: impl Into<RawBytes<'a>>, own: Neighbour) -> Option<Self> {
        match own.1 {
            IpAddr::V4(address) => {
                let Arp { operation, sender, target } = Arp::parse(frame)?;
                let reply = Arp { operation: Operation::Reply, sender: (own.0, address), target: sender };
                let answer = (operation == Operation::Request).then(|| reply.frame());
                (target.1 == address).then_some(Self { neighbour: Some((sender.0, sender.1.into())), answer })
            }
            IpAddr::V6(address) => match Nd::parse(frame)? {
                Nd::Solicitation { from, answer_to, hardware, target } => {
                    let neighbour = hardware.map(|hardware| (hardware, from.into()));
                    let answer = nd::advertisement((own.0, address), (hardware.unwrap_or(answer_to), from), false);
                    (target == address).then_some(Self { neighbour, answer: Some(answer) })
                }
                Nd::Advertisement { target, hardware } => {
                    Some(Self { neighbour: Some((hardware, target.into())), answer: None })
                }
            },
        }
    }
}

/// Returns the frame, for all, by which a station says its hardware address to its neighbours (RFC 5227, 3; RFC 4861, 7.2.6).
pub fn announcement(mac: MacAddress, ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => Arp { operation: Operation::Request, sender: (mac.0, ip), target: ([0; 6], ip) }.frame(),
        IpAddr::V6(ip) => nd::advertisement((mac.0, ip), ([0; 6], Ipv6Addr::UNSPECIFIED), false),
    }
}

/// Statement and question of a station in a frame about neighbours.
pub(super) struct Said {
    /// Present if it says its addresses.
    pub(super) sender: Option<Neighbour>,
    question: Option<Question>,
}

/// A question for the hardware address of an IP address.
enum Question {
    Arp(Arp),
    /// The address, and where the answer goes.
    Nd(Ipv6Addr, ([u8; 6], Ipv6Addr)),
}

impl Said {
    /// Parses a frame; `None` if it is about something else.
    pub(super) fn parse<'a>(frame: impl Into<RawBytes<'a>>) -> Option<Self> {
        let frame = frame.into();
        match frame.array(12)? {
            arp::ETHERTYPE => {
                let arp = Arp::parse(frame)?;
                let (mac, ip) = arp.sender;
                // Who asks for its own address tells others of it; from 0.0.0.0, it asks whether somebody has it (RFC 5227).
                let asks = arp.operation == Operation::Request && arp.target.1 != ip;
                let sender = (!ip.is_unspecified()).then_some((mac, ip.into()));
                Some(Self { sender, question: asks.then_some(Question::Arp(arp)) })
            }
            nd::ETHERTYPE => Some(match Nd::parse(frame)? {
                Nd::Solicitation { from, answer_to, hardware, target } => {
                    let question = Question::Nd(target, (hardware.unwrap_or(answer_to), from));
                    Self { sender: hardware.map(|mac| (mac, from.into())), question: Some(question) }
                }
                Nd::Advertisement { target, hardware } => {
                    Self { sender: Some((hardware, target.into())), question: None }
                }
            }),
            _ => None,
        }
    }

    /// Returns the address that is asked for.
    pub(super) fn asked(&self) -> Option<IpAddr> {
        Some(match self.question.as_ref()? {
            Question::Arp(arp) => arp.target.1.into(),
            Question::Nd(target, _) => (*target).into(),
        })
    }

    /// Returns the frame in which the station with this hardware address, which may be a router, answers the question.
    pub(super) fn answer(&self, mac: [u8; 6], is_router: bool) -> Option<Vec<u8>> {
        Some(match *self.question.as_ref()? {
            Question::Arp(Arp { sender, target, .. }) => {
                Arp { operation: Operation::Reply, sender: (mac, target.1), target: sender }.frame()
            }
            Question::Nd(target, to) => nd::advertisement((mac, target), to, is_router),
        })
    }
}

/// Returns a frame that asks for the hardware address of an IP address of the same family.
pub(super) fn question(own: Neighbour, target: IpAddr) -> Option<Vec<u8>> {
    match (own.1, target) {
        (IpAddr::V4(address), IpAddr::V4(target)) => {
            let (sender, target) = ((own.0, address), ([0; 6], target));
            Some(Arp { operation: Operation::Request, sender, target }.frame())
        }
        (IpAddr::V6(address), IpAddr::V6(target)) => Some(nd::solicitation((own.0, address), target)),
        _ => None,
    }
}
